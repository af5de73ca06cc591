"""The parser of the command line: argparse, with short errors that say what may be meant.

Options cannot be abbreviated: an abbreviation that works today can mean something else tomorrow,
when there are more options.
"""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from penstock.suggestions import did_you_mean


class Parser(argparse.ArgumentParser):
    """A parser of a command, or of all of them."""

    def __init__(self, **options: Any) -> None:
        options = {"formatter_class": argparse.RawDescriptionHelpFormatter} | options
        super().__init__(allow_abbrev=False, **options)
        self._given: Sequence[str] = ()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and refuse what argparse leaves over for its caller."""
        self._given = args
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"too much: {' '.join(rest)}")
        return options, rest

    def error(self, message: str) -> NoReturn:
        """End with one line: what is wrong, and what may be meant."""
        known = self._option_string_actions
        names = [each.partition("=")[0] for each in self._given]
        unknown = [name for name in names if name[:2] == "--" != name and name not in known]
        if unknown and message.startswith(("too much", "the following arguments are required")):
            message = f"there is no option {unknown[0]}{did_you_mean(unknown[0], known)}"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError:
            choices = list(map(str, action.choices or ()))
            hint = did_you_mean(str(value), choices)
            message = f"{value!r} is not one of {', '.join(choices)}{hint}"
            raise argparse.ArgumentError(action, message) from None
