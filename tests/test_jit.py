import re

from penstock.jit import kernel_sources


def test_the_cache_of_kernels_is_named_after_all_files_whose_code_or_constants_they_hold():
    names = {path.name for path in kernel_sources()}
    assert {"kernels.py", "layout.py", "shard.py", "jit.py"} <= names
    for path in kernel_sources():
        if path.name == "kernels.py":
            imports = re.findall(r"^(?:from|import) (penstock\S*)", path.read_text(), re.M)
            known = [str(source.with_suffix("")).replace("/", ".") for source in kernel_sources()]
            assert all(any(each.endswith(name) for each in known) for name in imports)
