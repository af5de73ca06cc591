"""Makes expected.json.gz with nanochat's real loaders: `python make.py CLONE`, from the root.

CLONE is a clone of karpathy/nanochat. It runs unaltered, on the CPU, with torch, pyarrow, rustbpe
and tiktoken. Run this only to add cases: what is there pins what users of nanochat got.
"""

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

from tests.helpers.nanochat_corpus import ByteTokenizer, documents, write_corpus

HERE = Path(__file__).parent
BEST_FIT = "tokenizing_distributed_data_loader_with_state_bos_bestfit"
FLAT = "tokenizing_distributed_data_loader_with_state"
FIRST = "tokenizing_distributed_data_loader"
HEAD, LAST_FLAT, POPS_ALL, INITIAL = "92d63d4", "3c3a3d7", "21608ec", "3a5e0bc"
ALL_FILES = (0, 1, 2, 3)


def case(commit, loader, batches, B, T, split="train", **more):  # noqa: N803
    """One run; `more` are arguments of the loader, and world, rank, files, tokenizer, resume."""
    about = {"world": 1, "rank": 0, "files": ALL_FILES, "tokenizer": "bytes", "resume": None}
    found = {name: more.pop(name, value) for name, value in about.items()}
    arguments = {"B": B, "T": T, "split": split, **more}
    return {"commit": commit, "loader": loader, "batches": batches, **found, "arguments": arguments}


def ranks(world, *args, **more):
    """The same on every rank."""
    return [case(*args, **more, world=world, rank=rank) for rank in range(world)]


def at(pq_idx, rg_idx, epoch=1):
    """A state to resume from."""
    return {"pq_idx": pq_idx, "rg_idx": rg_idx, "epoch": epoch}


SMALL = {"buffer_size": 50, "tokenizer_batch_size": 16}
CASES = [
    # BOS best-fit: the defaults; small buffers; many ranks; the other split
    case(HEAD, BEST_FIT, 220, 4, 256),
    *ranks(2, HEAD, BEST_FIT, 60, 2, 2048),
    *ranks(2, HEAD, BEST_FIT, 600, 2, 64, **SMALL),
    *ranks(3, HEAD, BEST_FIT, 150, 3, 127, buffer_size=100),
    *ranks(3, HEAD, BEST_FIT, 40, 2, 300, tokenizer_batch_size=1000),
    case(HEAD, BEST_FIT, 300, 1, 512, buffer_size=1, tokenizer_batch_size=1),
    case(HEAD, BEST_FIT, 100, 5, 1, buffer_size=3, tokenizer_batch_size=2),
    case(HEAD, BEST_FIT, 100, 2, 100, "val", buffer_size=64, tokenizer_batch_size=7),
    *ranks(3, HEAD, BEST_FIT, 60, 1, 200, "val", **SMALL),
    case(HEAD, BEST_FIT, 150, 4, 64, tokenizer="rustbpe"),
    # whole files, as one rank of several would be dealt them (the file for validation is not read)
    case(HEAD, BEST_FIT, 60, 2, 128, files=(0, 2, 3), **SMALL),
    case(HEAD, BEST_FIT, 60, 2, 128, files=(1, 3), **SMALL),
    # resumed: in the middle; at a file's last group; from another number of ranks; at the end
    case(HEAD, BEST_FIT, 30, 2, 256, resume=at(0, 1), **SMALL),
    *ranks(2, HEAD, BEST_FIT, 30, 2, 256, resume=at(0, 3, 2), **SMALL),
    *ranks(3, HEAD, BEST_FIT, 30, 2, 256, resume=at(1, 1), **SMALL),
    *ranks(2, HEAD, BEST_FIT, 20, 2, 256, resume=at(0, 0), **SMALL),
    case(HEAD, BEST_FIT, 30, 2, 256, resume=at(2, 1, 3), **SMALL),
    case(HEAD, BEST_FIT, 10, 2, 256, resume={"pq_idx": 1, "rg_idx": 0}, **SMALL),
    # flat, advancing by B*T; by B*T + 1; and the very first
    case(LAST_FLAT, FLAT, 200, 4, 1024),
    *ranks(2, LAST_FLAT, FLAT, 300, 3, 65, tokenizer_batch_size=16),
    *ranks(3, LAST_FLAT, FLAT, 60, 2, 127),
    case(LAST_FLAT, FLAT, 80, 1, 2048, "val", tokenizer_batch_size=7),
    *ranks(2, LAST_FLAT, FLAT, 20, 2, 128, resume=at(0, 1, 2)),
    case(POPS_ALL, FLAT, 200, 4, 1024),
    *ranks(2, POPS_ALL, FLAT, 100, 3, 65, tokenizer_batch_size=16),
    *ranks(2, POPS_ALL, FLAT, 20, 2, 128, resume={"pq_idx": 0, "rg_idx": 1}),
    *ranks(2, INITIAL, FIRST, 60, 2, 128),
]


def main(clone: str) -> None:
    """Run every case in a process of its own, with the nanochat of its commit."""
    with tempfile.TemporaryDirectory() as root:
        commits = {
            name: _check_out(clone, name, Path(root, name))
            for name in dict.fromkeys(each["commit"] for each in CASES)
        }
        vocabulary = _train()
        for number, each in enumerate(CASES):
            base = Path(root, "base", *map(str, each["files"]))
            if not base.exists():
                write_corpus(base / "base_data", each["files"])
                (base / "base_data_climbmix").symlink_to("base_data")
            environment = {**os.environ, "NANOCHAT_BASE_DIR": str(base)}
            environment["PYTHONPATH"] = os.pathsep.join([str(Path(root, each["commit"])), "."])
            if each["world"] > 1:
                shares = {"RANK": each["rank"], "LOCAL_RANK": each["rank"]}
                shares["WORLD_SIZE"] = each["world"]
                environment |= {name: str(value) for name, value in shares.items()}
            told = json.dumps({"case": each, "vocabulary": vocabulary})
            command = [sys.executable, __file__, "--run"]
            ran = subprocess.run(command, input=told, env=environment, text=True, stdout=-1)
            ran.check_returncode()
            each |= json.loads(ran.stdout.splitlines()[-1])
            print(number, each["commit"], each["arguments"], each["states"][-1:], flush=True)
    found = {"commits": commits, "vocabulary": vocabulary, "cases": CASES}
    content = json.dumps(found, separators=(",", ":")).encode()
    (HERE / "expected.json.gz").write_bytes(gzip.compress(content, mtime=0))


def _check_out(clone: str, commit: str, place: Path) -> str:
    place.mkdir()
    git = ["git", "-C", clone]
    archive = subprocess.run([*git, "archive", commit, "nanochat"], check=True, stdout=-1).stdout
    subprocess.run(["tar", "x", "-C", place], input=archive, check=True)
    show = [*git, "show", "-s", "--format=%H %cs", commit]
    return subprocess.run(show, check=True, stdout=-1, text=True).stdout.strip()


def _train() -> list[str]:
    """A vocabulary of 400 tokens from the documents themselves, in hexadecimal, by rank."""
    import rustbpe

    from millstream.text.splitting.patterns import PATTERNS

    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator(iter(documents()), 400, pattern=PATTERNS["nanochat"].regex)
    return [bytes(token).hex() for token, _ in trainer.get_mergeable_ranks()]


def run_case() -> None:
    """Run the case of the standard input, and print what came."""
    told = json.load(sys.stdin)
    each = told["case"]
    from nanochat import dataloader

    tokenizer = _tokenizer(each["tokenizer"], told["vocabulary"])
    arguments = dict(each["arguments"])
    if each["commit"] == INITIAL:
        _stay_on_the_cpu(dataloader, tokenizer)
    else:
        arguments |= {"tokenizer": tokenizer, "device": "cpu"}
        arguments |= {"resume_state_dict": each["resume"]}
    loader = getattr(dataloader, each["loader"])(**arguments)
    first, hashes, states = None, [], []
    for inputs, targets, *state in islice(loader, each["batches"]):
        both = inputs.long().tolist(), targets.long().tolist()
        first = first or both
        hashes.append(hashlib.sha256(json.dumps(both).encode()).hexdigest()[:16])
        states += [list(each.values()) for each in state]
    dtypes = [str(inputs.dtype), str(targets.dtype)]
    print(json.dumps({"dtypes": dtypes, "first": first, "hashes": hashes, "states": states}))


def _tokenizer(name, vocabulary):
    if name == "bytes":
        return ByteTokenizer()
    import tiktoken
    from nanochat.tokenizer import SPECIAL_TOKENS, SPLIT_PATTERN, RustBPETokenizer

    by_bytes = {bytes.fromhex(token): rank for rank, token in enumerate(vocabulary)}
    specials = {name: len(by_bytes) + k for k, name in enumerate(SPECIAL_TOKENS)}
    encoding = tiktoken.Encoding(
        name="rustbpe",
        pat_str=SPLIT_PATTERN,
        mergeable_ranks=by_bytes,
        special_tokens=specials,
    )
    return RustBPETokenizer(encoding, "<|bos|>")


def _stay_on_the_cpu(dataloader, tokenizer):
    """The first loader knows CUDA alone, and finds its tokenizer by itself."""
    torch = dataloader.torch
    empty, to = torch.empty, torch.Tensor.to
    torch.empty = lambda *sizes, pin_memory, **more: empty(*sizes, **more)
    torch.Tensor.to = lambda self, device=None, non_blocking=False, **more: to(self, **more)
    dataloader.get_tokenizer = lambda: tokenizer


if __name__ == "__main__":
    run_case() if sys.argv[1:] == ["--run"] else main(sys.argv[1])
