"""`Marks`: the tokens that mark where documents start and end.

Everything that tokenizes has an argument `add`, with one default: `eos` if the tokenizer has such a
token, else `bos`. A tokenizer that has neither is refused, unless the user asks for `none`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from millstream.arguments import one_of
from millstream.errors import UsageError

Add = Literal["eos", "bos", "both", "none"]
"""which marks every document gets"""


class MarkingTokenizer(Protocol):
    """What the choice of marks needs to know of a tokenizer."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def specials(self) -> Mapping[str, int]:
        """Its special tokens and their ids."""

    @property
    def bos_id(self) -> int | None:
        """The special token that starts documents, if it has one."""

    @property
    def eos_id(self) -> int | None:
        """The special token that ends documents, if it has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """The marks of every document; None for no mark."""

    bos_id: int | None = None
    """the token before the document"""
    eos_id: int | None = None
    """the token after it"""

    @property
    def add(self) -> Add:
        """The `add` that means these marks."""
        if self.bos_id is None:
            return "none" if self.eos_id is None else "eos"
        return "bos" if self.eos_id is None else "both"

    @property
    def num_tokens(self) -> int:
        """How many tokens they add to a document."""
        return (self.bos_id is not None) + (self.eos_id is not None)

    @property
    def codes(self) -> tuple[int, int]:
        """`bos_id` and `eos_id` for kernels (`marks.pxd`), with -1 for None."""
        return (
            -1 if self.bos_id is None else self.bos_id,
            -1 if self.eos_id is None else self.eos_id,
        )


def choose_marks(add: Add | None, tokenizer: MarkingTokenizer) -> Marks:
    """The marks that `add` means with this tokenizer.

    >>> from millstream.text.tokenizers.byte_tokenizer import ByteTokenizer
    >>> choose_marks(None, ByteTokenizer())
    Marks(bos_id=None, eos_id=256)
    """
    has = {"eos": tokenizer.eos_id is not None, "bos": tokenizer.bos_id is not None}
    if add is not None:
        one_of("add", add, get_args(Add))
    elif not any(has.values()):
        raise UsageError(
            f"the tokenizer {tokenizer.name} has no token that starts or ends documents; choose "
            "add='none' (--add none) to leave documents unmarked, or use a tokenizer with a "
            "bos_token_id or an eos_token_id"
        )
    else:
        add = "eos" if has["eos"] else "bos"
    for mark, is_known in has.items():
        if add in (mark, "both") and not is_known:
            raise UsageError(
                f"add is {add!r}, but the tokenizer {tokenizer.name} has no {mark} token; its "
                f"special tokens are: {', '.join(tokenizer.specials) or 'none'}"
            )
    return Marks(
        bos_id=tokenizer.bos_id if add in ("bos", "both") else None,
        eos_id=tokenizer.eos_id if add in ("eos", "both") else None,
    )
