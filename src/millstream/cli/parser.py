"""The command-line parser: argparse with one-line errors that suggest the likely spelling.

Options cannot be abbreviated: an abbreviation that is unique today may be ambiguous once there are
more options.
"""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from millstream.suggestions import did_you_mean


class Parser(argparse.ArgumentParser):
    """The parser of one command, or of the whole program."""

    def __init__(self, **options: Any) -> None:
        options = {"formatter_class": argparse.RawDescriptionHelpFormatter} | options
        super().__init__(allow_abbrev=False, add_help=False, **options)
        self.add_argument("-h", "--help", action="help", help="Show this help and exit")
        self._given: Sequence[str] = ()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and reject arguments that argparse would hand back to its caller."""
        self._given = args
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unexpected argument: {' '.join(rest)}")
        return options, rest

    def error(self, message: str) -> NoReturn:
        """Exit with one line: what is wrong, and what was probably meant."""
        known = self._option_string_actions
        names = [each.partition("=")[0] for each in self._given]
        unknown = [name for name in names if name[:2] == "--" != name and name not in known]
        if unknown and message.startswith(("unexpected argument", "the following arguments")):
            message = f"unknown option {unknown[0]}{did_you_mean(unknown[0], known)}"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError:
            choices = list(map(str, action.choices or ()))
            hint = did_you_mean(str(value), choices)
            message = f"{value!r} is not one of {', '.join(choices)}{hint}"
            raise argparse.ArgumentError(action, message) from None
