import subprocess
import sys

import pytest

import penstock


def test_all_names_are_sorted_and_there():
    assert penstock.__all__ == sorted(penstock.__all__)
    assert all(getattr(penstock, name) is not None for name in penstock.__all__)
    assert dir(penstock) == penstock.__all__


@pytest.mark.process
def test_importing_penstock_imports_nothing_else():
    program = (
        "import sys, penstock\n"
        "assert not {'numpy', 'torch', 'rich'} & set(sys.modules)\n"
        "import penstock.load.loader, penstock.dataset, penstock.write.writer\n"
        "assert not {'torch', 'rich'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.process
def test_torch_batches_without_torch_name_what_to_install(data, tmp_path):
    program = (
        "import importlib.util, sys, penstock\n"
        "find_spec = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'torch' else find_spec(name)\n"
        "penstock.Loader(penstock.open(sys.argv[1]).windows(5), 4)\n"
    )
    directory = str(data.shards[0].directory)
    result = subprocess.run(
        [sys.executable, "-c", program, directory], capture_output=True, text=True, check=False
    )
    assert "pip install 'penstock[torch]', or pass output='numpy'" in result.stderr


@pytest.mark.process
def test_numpy_batches_need_no_torch(data):
    program = (
        "import sys, penstock\n"
        "sys.modules['torch'] = None  # any import of it fails\n"
        "loader = penstock.Loader(penstock.open(sys.argv[1]).windows(5), 4, output='numpy')\n"
        "print(sum(len(batch['input_ids']) for batch in loader))\n"
    )
    directory = str(data.shards[0].directory)
    result = subprocess.run(
        [sys.executable, "-c", program, directory], check=True, capture_output=True, text=True
    )
    assert result.stdout == "200\n"
