"""The GPT examples: forms of attention, and runs that resume exactly, on other ranks too."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest

import millstream
from tests.helpers import paths
from tests.helpers.datasets import write_dataset
from tests.helpers.example_runs import EXAMPLES, ON_CPU, Run, newest_step, run_ranks, torchrun

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """300 documents of 1 to 100 tokens."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 100, 300)
    tokens = generator.zipf(1.5, lengths.sum()) % 512
    path = tmp_path_factory.mktemp("documents") / "data"
    write_dataset(path, tokens, cuts=np.cumsum(lengths)[:-1], shard_bytes=8000)
    return path


@pytest.fixture
def gpt(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import gpt

    return gpt


def on_gpu(*values):
    needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    return pytest.param(*values, "cuda", marks=[pytest.mark.gpu, needs_gpu])


@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize(
    ("attention", "device"),
    [("sdpa", "cpu"), ("flex", "cpu"), *map(on_gpu, ["sdpa", "varlen", "flash", "flex"])],
)
@pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile", "ignore::DeprecationWarning:torch"
)
def test_every_document_of_a_row_gets_the_logits_that_it_gets_alone(
    attention, device, static_shapes, documents, gpt
):
    if attention == "flash":
        pytest.importorskip("flash_attn")
    extras = ["position_ids", "cu_seqlens", "document_ids"]
    view = millstream.open(documents).packed(128, extras=extras, static_shapes=static_shapes)
    torch.manual_seed(0)
    model = gpt.GPT(gpt.TINY, 128, attention).to(device)
    alone = gpt.GPT(gpt.TINY, 128, "sdpa").to(device)
    alone.load_state_dict(model.state_dict())
    is_exact = attention in {"sdpa", "flex"}
    # The kernels of varlen and flash take bf16 only.
    precision = nullcontext() if is_exact else torch.autocast(device, torch.bfloat16)
    tolerance = {"atol": 1e-4, "rtol": 1e-4} if is_exact else {"atol": 3e-2, "rtol": 3e-2}
    batch = next(iter(millstream.Loader(view, 4, device=device)))
    with torch.no_grad(), precision:
        packed = model(batch).flatten(0, 1)
        is_padding = (batch["document_ids"] < 0).flatten()
        for start, stop in pairwise(batch["cu_seqlens"].tolist()):
            if start < stop and not is_padding[start]:
                single = {
                    "input_ids": batch["input_ids"].flatten()[None, start:stop],
                    "position_ids": torch.arange(stop - start, device=device)[None],
                    "cu_seqlens": torch.tensor([0, stop - start], device=device),
                }
                torch.testing.assert_close(packed[start:stop], alone(single)[0], **tolerance)


def steps_of(printed):
    """The digest and the loss of every step that was printed."""
    found = re.findall(r"^step (\d+): loss ([\d.]+), rows ([0-9a-f]{32}),", printed, re.M)
    return {int(step): digest for step, _, digest in found}, {
        int(step): float(loss) for step, loss, _ in found
    }


def weights_of(printed):
    return re.findall(r"^weights [0-9a-f]{64}$", printed, re.M)


def small(documents, steps):
    """Arguments of runs of 8 rows per step; the last is the output directory's option."""
    return [
        *("--tiny", "--data", documents, "--seq-len", 64, "--global-batch-size", 8),
        *("--batch-size", 2, "--steps", steps, "--log-every", 1, "--checkpoint-every", 4, "--out"),
    ]


@pytest.mark.process
@pytest.mark.slow
def test_the_command_of_the_docs_trains_from_pythons_own_sources_on_a_cpu(tmp_path):
    page = (paths.ROOT / "docs" / "training.md").read_text()
    (command,) = re.findall(r"^python examples/(train_gpt.py --tiny .*)$", page, re.M)
    script, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *arguments],
        cwd=tmp_path,
        env=os.environ | ON_CPU,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    line = r"^step 20: loss \d\.\d+, rows .*, [\d,]+ tokens/s, [\d.]+% of the time waited for data$"
    assert re.search(line, done.stdout, re.M)
    found = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert found == ["data", "step-0000020.pt", "tokenizer"]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", on_gpu()])
def test_a_killed_run_resumes_with_the_same_rows_and_ends_with_the_same_weights(
    device, documents, tmp_path
):
    arguments, out = ["--deterministic", *small(documents, 60)], tmp_path / "killed"
    environment = ON_CPU if device == "cpu" else {}

    def start(name, out):
        return Run("train_gpt.py", [*arguments, out], tmp_path / f"{name}.log", environment)

    alone, killed = start("alone", tmp_path / "alone"), start("killed", out)
    killed.wait_for(lambda: newest_step(out))
    killed.process.kill()
    killed.process.join()
    assert killed.process.exitcode == -signal.SIGKILL
    (out / "checkpoint.tmp").write_bytes(b"half of a")
    resumed = start("resumed", out).end()
    assert 0 < int(re.search(r"begins at step (\d+)\n", resumed)[1]) < 60
    expected, found = alone.end(), killed.log.read_text() + resumed
    assert len(steps_of(expected)[0]) == 60
    assert steps_of(found) == steps_of(expected)
    assert weights_of(found) == weights_of(expected) != []


@pytest.mark.timeout(400)  # eight processes, on machines that may be busy
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "ranks", "other_ranks", "steps"),
    [("train_gpt_ddp.py", 2, 4, 40), ("train_gpt_fsdp.py", 4, 2, 14)],
)
def test_ranks_of_which_one_is_killed_resume_exactly_also_as_another_number_of_ranks(
    example, ranks, other_ranks, steps, documents, tmp_path
):
    arguments = small(documents, steps)

    def undisturbed(name, ranks):
        runs = run_ranks(example, [*arguments, tmp_path / name], ranks, tmp_path / f"{name}-logs")
        printed, *_ = [run.end() for run in runs]
        assert f"rank 0 of {ranks}, " in printed
        return printed

    expected = undisturbed("alone", ranks)
    digests, losses = steps_of(expected)
    assert len(digests) == steps

    out, log = tmp_path / "killed", tmp_path / "torchrun.log"
    with torchrun(example, [*arguments, out], ranks, log) as process:
        while not newest_step(out) and process.poll() is None:
            time.sleep(0.001)
        victim = re.search(rf"rank 1 of {ranks}, process (\d+), begins", log.read_text())
        os.kill(int(victim[1]), signal.SIGKILL)
        assert process.wait(100) != 0
    begin, printed = newest_step(out), log.read_text()
    assert 0 < begin < steps
    (out / "step-9999999").mkdir()  # as a kill leaves it before a checkpoint is complete
    shutil.copytree(out, tmp_path / "other")

    resumed = undisturbed("killed", ranks)
    assert f"begins at step {begin}\n" in resumed
    assert steps_of(printed + resumed) == (digests, losses)
    assert weights_of(resumed) == weights_of(expected) != []

    resumed = undisturbed("other", other_ranks)
    assert f"begins at step {begin}\n" in resumed
    other_digests, other_losses = steps_of(printed + resumed)
    assert other_digests == digests
    assert other_losses == pytest.approx(losses, abs=1e-3)
