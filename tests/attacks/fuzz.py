"""Feeds mutated files to every parser of foreign formats: `make fuzz` (needs atheris; not a test).

Anything but a file that is read consistently, or refused with an error of ours, ends the run, and
atheris keeps the input.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["millstream.formats", "millstream.opening"]):
    import fuzzing


def main() -> None:
    """Run for as long as the command line says, with golden files as seeds."""
    kept = Path.cwd()
    with fuzzing.empty_directory() as directory:
        corpus = directory / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(fuzzing.seeds()):
            (corpus / str(number)).write_bytes(seed)
        options = ["-max_len=16384", "-timeout=20", f"-artifact_prefix={kept}/", *sys.argv[1:]]
        atheris.Setup([sys.argv[0], *options, str(corpus)], fuzzing.read_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
