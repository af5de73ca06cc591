"""How TRL packs, from lengths alone: the row counts to compare policies with.

`bfd`, its default, truncates documents to a row; `bfd_split` cuts them into rows and a rest. Both
then pack best-fit-decreasing inside each batch of `datasets.map`, 1,000 documents. Rows with equal
space left are used first in, first out, which decides the contents of rows but not their number.

`check` compares this with trl 1.16, run once on the same lengths.
"""

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

from benchmarks.corpora import lognormal_lengths
from millstream.pack.report import PackReport

_MAP_BATCH = 1000
_CHECKED_DOCUMENTS, _CHECKED_MU, _CHECKED_SEQ_LEN = 200_000, 6.3, 2048
_TRUNCATED_OF_TRL = 0.224626
_OF_TRL = {"bfd": (75_785, 0.997802), "bfd_split": (97_689, 0.998322)}


def pack(lengths: NDArray[np.int64], seq_len: int, *, splits: bool) -> PackReport:
    """Count the rows that TRL makes of documents."""
    report = PackReport(
        "bfd_split" if splits else "bfd",
        seq_len,
        lengths.size,
        int((lengths == 0).sum()),
        int(lengths.sum()),
    )
    is_longer = lengths > seq_len
    report.num_split = int(is_longer.sum())
    report.cropped = 0 if splits else int((lengths[is_longer] - seq_len).sum())
    for start in range(0, lengths.size, _MAP_BATCH):
        pieces: list[int] = []
        for length in lengths[start : start + _MAP_BATCH].tolist():
            if splits:
                pieces += [seq_len] * (length // seq_len)
                length %= seq_len
            pieces += [min(length, seq_len)] if length else []
        report.num_pieces += len(pieces)
        report.num_rows += _best_fit_decreasing(pieces, seq_len)
    return report


def check() -> None:
    """Pack the documents that TRL packed, and raise an error unless the counts are equal."""
    lengths = lognormal_lengths(np.random.default_rng(0), _CHECKED_MU, _CHECKED_DOCUMENTS)
    for name, (num_rows, utilisation) in _OF_TRL.items():
        report = pack(lengths, _CHECKED_SEQ_LEN, splits=name == "bfd_split")
        truncated = _TRUNCATED_OF_TRL if name == "bfd" else 0.0
        ours = report.num_rows, 1 - report.padding_share, report.cropped / report.num_records
        if not np.allclose(ours, (num_rows, utilisation, truncated), rtol=0, atol=6e-7):
            raise RuntimeError(f"{name}: {ours}, but trl 1.16 made {num_rows, utilisation}")


def _best_fit_decreasing(lengths: list[int], seq_len: int) -> int:
    """Return the number of rows: each piece goes where it leaves the least space."""
    spaces: list[int] = []
    num_rows = 0
    for length in sorted(lengths, reverse=True):
        at = bisect_left(spaces, length)
        if at < len(spaces):
            space = spaces.pop(at)
        else:
            space = seq_len
            num_rows += 1
        if space > length:
            insort(spaces, space - length)
    return num_rows
