"""The hash stage: finds the smallest hashes of all documents, for a split by count."""

from dataclasses import dataclass

import numpy as np

from millstream.atomic import NewFile
from millstream.progress import OnProgress
from millstream.text.sources import Source
from millstream.text.tokenize.job_directory import JobDirectory
from millstream.text.tokenize.plan import TokenizePlan
from millstream.text.tokenize.slice_reader import SliceReader
from millstream.text.tokenize.split import Split, smallest, threshold_of_count, whole_groups
from millstream.text.tokenize.stage import task_progress
from millstream.text.tokenizers.tokenizer import Tokenizer

_LITTLE_ENDIAN = np.dtype("<u8")


@dataclass(frozen=True, kw_only=True, slots=True)
class HashStage:
    """Each task reads a slice and stores its smallest hashes, one more than the count."""

    directory: JobDirectory
    plan: TokenizePlan
    source: Source
    tokenizer: Tokenizer

    @property
    def name(self) -> str:
        """The verb in the names of files."""
        return "hash"

    @property
    def activity(self) -> str:
        """What tasks do."""
        return "hashing"

    @property
    def _split(self) -> Split:
        assert self.plan.split is not None  # else there is nothing to hash
        return self.plan.split

    def describe(self, number: int) -> str:
        """What a task reads."""
        return self.plan.describe(number)

    def size_bytes(self, number: int) -> int:
        """About how many bytes a task reads."""
        return self.plan.tasks[number].size_bytes

    def is_done(self, number: int) -> bool:
        """True if its hashes are stored."""
        return self.directory.hashes(number).exists()

    def run(self, number: int, report: OnProgress) -> None:
        """Store the smallest hashes of a slice."""
        reading = SliceReader(source=self.source, tokenizer=self.tokenizer)
        split = self._split
        count = (split.count or 0) + 1
        held, num_held = [np.zeros(0, np.uint64)], 0
        num_bytes = 0
        for piece in reading.pieces(self.plan.tasks[number]):
            num_bytes += int(piece.batch.offsets[-1] - piece.batch.offsets[0])
            report(task_progress(self, num_bytes))
            if piece.begins:
                hashes, bad = reading.hashes(piece.batch, split)
                left_out = whole_groups(bad, self.plan.group_size)
                held.append(np.delete(hashes, list(left_out))[:: self.plan.group_size])
                num_held += len(held[-1])
            if num_held > 4 * count:
                held = [smallest(np.concatenate(held), count)]
                num_held = count
        file = NewFile(self.directory.hashes(number))
        try:
            file.write(smallest(np.concatenate(held), count).astype(_LITTLE_ENDIAN))
            file.finish()
        except BaseException:
            file.discard()
            raise

    def threshold(self) -> int:
        """The threshold that the hashes of all tasks together mean."""
        count = self._split.count or 0
        held = np.zeros(0, np.uint64)
        for number in range(len(self.plan.tasks)):
            found = np.fromfile(self.directory.hashes(number), _LITTLE_ENDIAN)
            held = smallest(np.concatenate([held, found]), count + 1)
        return threshold_of_count(held, count)
