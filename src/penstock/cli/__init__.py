"""The command line. Every command is a module with `add_arguments` and `run`.

Nothing heavy is imported before a command runs, and no other command: `penstock --help` returns at
once.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from penstock._version import __version__
from penstock.cli.parser import Parser
from penstock.errors import PenstockError

_COMMANDS = (
    "demo",
    "fetch",
    "repack",
    "train-tokenizer",
    "tokenize",
    "finish",
    "inspect",
    "pack",
    "convert",
    "verify",
    "audit",
    "bench",
)
_GO_ON = ("fetch", "repack", "tokenize", "finish", "convert")
"""commands that keep what is done"""
_EXAMPLES = """\
examples:
  penstock demo                                 see the whole thing work, on real text, in a minute
  penstock fetch 'https://host/shard_{00000..00239}.parquet' --out corpus
  penstock repack 'raw/*.jsonl.gz' --out corpus --shuffle 0    text shards of one size
  penstock train-tokenizer corpus --out tok     a BPE vocabulary from text files
  penstock tokenize 'corpus/*.parquet' --tokenizer tok.json --out data/fineweb --val-fraction 0.001
  penstock inspect data/fineweb --seq-len 2048  what a dataset holds, and a few samples
  penstock pack data/fineweb/train --report     padding, split and cropped documents, per policy
  penstock convert corpus.ds out --to penstock  between formats; resumes where it was killed
  penstock verify 'data/*'                      read every byte, check sizes, checksums, offsets
  penstock audit data/fineweb/train --seq-len 2048 --batch-size 32 --ranks 8 --change 1000:ranks=4
  penstock bench data/fineweb/train --seq-len 2048 --batch-size 32
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    wanted = arguments[:1] if arguments and arguments[0] in _COMMANDS else _COMMANDS
    modules = {name: import_module(f"penstock.cli.{name.replace('-', '_')}") for name in wanted}
    parser = Parser(
        prog="penstock",
        description="Feeds language-model training: text or token files in, exact batches out.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in modules.items():
        summary = (module.__doc__ or "").strip().split("\n")[0]
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(command)
    if not arguments:
        parser.print_help()
        return 2
    options = parser.parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            status: int = modules[options.command].run(options)
    except BrokenPipeError:  # the reader of our output, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (PenstockError, OSError) as error:
        print(f"penstock {options.command}: {_in_words(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        more = "; call it again to go on" if options.command in _GO_ON else ""
        print(f"penstock {options.command}: interrupted{more}", file=sys.stderr)
        return 130
    return status


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"penstock: warning: {message}", file=sys.stderr)


def _in_words(error: Exception) -> str:
    """An error of the system without its number, the file first."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
