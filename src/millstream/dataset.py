"""`Dataset`: any number of shards as one stream of records, with its views."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.formats.shard import BYTE, METADATA_ID, TOKEN
from millstream.metadata.span_decoding import Decoder
from millstream.read.record_stream import RecordStream
from millstream.suggestions import did_you_mean
from millstream.system.cached_property import cached_property
from millstream.views.documents import Documents
from millstream.views.excerpts import Excerpts, object_decoder
from millstream.views.objects import Objects
from millstream.views.packed import Packed
from millstream.views.view import View
from millstream.views.windows import Windows

if TYPE_CHECKING:
    from millstream.text.tokenizers.tokenizer import Tokenizer


P = ParamSpec("P")
AnyView = TypeVar("AnyView", bound=View)


def _takes_options_of(
    view: Callable[Concatenate[RecordStream, P], AnyView],
) -> Callable[[Callable[..., AnyView]], Callable[Concatenate[RecordStream, P], AnyView]]:
    """Give a method the signature of a view, with the dataset as `self`."""
    _, *parameters = signature(view).parameters.values()
    parameters = [each for each in parameters if not each.name.startswith("_")]
    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    expected = Signature([own, *parameters], return_annotation=view)
    names = [parameter.name for parameter in parameters]

    def decorate(
        method: Callable[..., AnyView],
    ) -> Callable[Concatenate[RecordStream, P], AnyView]:
        @wraps(method)
        def checked(self: RecordStream, /, *args: P.args, **options: P.kwargs) -> AnyView:
            takes = f"; it takes {', '.join(names)}"
            for name in options:
                if name not in names:
                    hint = did_you_mean(name, names) or takes
                    raise TypeError(f"{method.__name__}() has no option {name!r}{hint}")
            try:
                expected.bind(self, *args, **options)
            except TypeError as error:
                raise TypeError(f"{method.__name__}(): {error}{takes}") from None
            return method(self, *args, **options)

        checked.__signature__ = expected  # type: ignore[attr-defined]
        return checked

    return decorate


class Dataset(RecordStream):
    """The records of all shards, end to end, and views of them; made by `millstream.open`."""

    @cached_property
    def tokenizer(self) -> "Tokenizer | None":
        """The tokenizer that made the tokens, which `millstream tokenize` stores beside them.

        None if there is none, or if directories were made with different ones. Raises if it is not
        the one that the manifest names.
        """
        from millstream.text.tokenizers.dataset_tokenizer import fingerprint_in, load_stored

        noted = {fingerprint_in(manifest.tokenizer) for manifest in self.manifests}
        fingerprint = noted.pop()
        if noted or not fingerprint:
            return None
        directories = dict.fromkeys(shard.directory for shard in self.shards)
        found = (load_stored(directory, fingerprint) for directory in directories)
        return next((tokenizer for tokenizer in found if tokenizer is not None), None)

    @_takes_options_of(Windows)
    def windows(self, *args: Any, **options: Any) -> Windows:
        """View the stream as rows of `seq_len` inputs and labels; see `Windows`."""
        return Windows(self, *args, **options)

    @_takes_options_of(Documents)
    def documents(self, *args: Any, **options: Any) -> Documents:
        """View the dataset as one document a row; see `Documents`."""
        return Documents(self, *args, **options)

    @_takes_options_of(Packed)
    def packed(self, *args: Any, **options: Any) -> Packed:
        """View the dataset as several documents a row; see `Packed`."""
        return Packed(self, *args, **options)

    @_takes_options_of(Objects)
    def objects(self, *args: Any, **options: Any) -> Objects:
        """View a dataset that `Writer(encode=…)` wrote as one object a sample; see `Objects`."""
        return Objects(self, *args, **options)

    def rows(self, **options: Any) -> Windows:
        """View rows of one length as they are stored, as in LLMBATCH; options as for `windows`.

        The last token of a row is only a label.
        """
        lengths = {shard.row_records for shard in self.shards if shard.num_records}
        if len(lengths) != 1 or min(lengths) < 2:
            raise UsageError("the dataset has no rows of one length; use windows or documents")
        return self.windows(lengths.pop() - 1, overlap=False, **options)

    def document(self, number: int) -> NDArray[Any]:
        """Read one document: token ids, records if they have other fields, or bytes of an object.

        >>> data.document(4).tolist()
        [40, 41, 42, 43, 44, 45, 46, 47, 48, 49]
        """
        found = self.document_range(number)
        records = self.records(found.start, found.stop)
        if self.holds_objects:
            return records[BYTE]
        only_tokens = self.fields.names == (TOKEN, METADATA_ID)
        tokens: NDArray[Any] = records[TOKEN] if only_tokens else records
        return tokens

    def metadata(self, number: int, decode: Decoder = bytes) -> list[tuple[int, int, Any]]:
        """Read the metadata of one document: `(start, stop, decoded)` for each of its spans."""
        decoder = object_decoder(self, decode)
        found = self.document_range(number)
        if self.holds_objects:
            return [(0, len(found), self.objects(metadata=decoder)[number]["metadata"])]
        if not found:
            return []
        runs = np.array([[found.start, len(found), number]])
        (ids,), (objects,) = Excerpts(dataset=self, runs=runs, metadata=decoder).read()
        edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
        return [
            (start, stop, objects[ids[start]]) for start, stop in pairwise(edges) if ids[start] >= 0
        ]
