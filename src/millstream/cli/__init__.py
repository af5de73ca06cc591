"""The command line. Every command is a module with `add_arguments` and `run`.

Commands import what they need when they run, and only the chosen command is imported: `millstream
--help` returns at once.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from millstream._version import __version__
from millstream.cli.parser import Parser
from millstream.errors import MillstreamError

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
    "copy",
    "verify",
    "audit",
    "bench",
    "cache",
)
_RESUMABLE = ("fetch", "repack", "tokenize", "finish", "convert", "copy")
"""commands that keep finished work and continue when they are run again"""
_EXAMPLES = """\
examples:
  millstream demo                                 a complete run on real text, in about a minute
  millstream fetch 'https://host/shard_{00000..00239}.parquet' --out corpus
  millstream repack 'raw/*.jsonl.gz' --out corpus --shuffle 0    text shards of equal size
  millstream train-tokenizer corpus --out tok     learn a BPE vocabulary
  millstream tokenize 'corpus/*.parquet' --tokenizer tok --out data/fineweb --val-fraction 0.001
  millstream inspect data/fineweb --seq-len 2048  summarize a dataset and show samples
  millstream pack data/fineweb/train --report     compare packing policies
  millstream convert corpus.ds out --to millstream  convert between formats
  millstream copy data/fineweb s3://bucket/fineweb    upload, verified; or download
  millstream verify 'data/*'                      check every byte
  millstream audit data/fineweb/train --seq-len 2048 --batch-size 32 --ranks 8 --change 1000:ranks=4
  millstream bench data/fineweb/train --seq-len 2048 --batch-size 32
  millstream cache warm s3://bucket/data --seq-len 2048 --steps 1000    fetch before a run
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    wanted = arguments[:1] if arguments and arguments[0] in _COMMANDS else _COMMANDS
    modules = {name: import_module(f"millstream.cli.{name.replace('-', '_')}") for name in wanted}
    parser = Parser(
        prog="millstream",
        description="Feeds language-model training: text or token files in, exact batches out.",
        epilog=_EXAMPLES,
    )
    version = f"millstream {__version__}"
    parser.add_argument(
        "--version", action="version", version=version, help="Show the version and exit"
    )
    commands = parser.add_subparsers(
        dest="command", required=True, title="commands", metavar="COMMAND"
    )
    for name, module in modules.items():
        summary = (module.__doc__ or "").strip().split("\n")[0].removesuffix(".")
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
    except BrokenPipeError:  # the reader of our output, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (MillstreamError, OSError) as error:
        print(f"millstream {options.command}: {_in_words(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        more = "; run it again to continue" if options.command in _RESUMABLE else ""
        print(f"millstream {options.command}: interrupted{more}", file=sys.stderr)
        return 130
    return status


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"millstream: warning: {message}", file=sys.stderr)


def _in_words(error: Exception) -> str:
    """An operating-system error without its number, the file first."""
    if isinstance(error, OSError) and error.strerror is not None:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    else:
        text = str(error)
    mirrors = sys.modules.get("millstream.remote.mirror")
    return text if mirrors is None else str(mirrors.shown(text))
