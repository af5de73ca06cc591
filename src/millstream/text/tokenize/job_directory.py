"""`JobDirectory`: where the files of a tokenize job lie."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from millstream.atomic import TEMPORARY, publish
from millstream.errors import MissingDataError
from millstream.formats.checksums import publish_checked
from millstream.formats.files import read_whole
from millstream.formats.job_marks import PLAN, REPORT
from millstream.formats.stream import MANIFEST_NAME, PART_SUFFIX
from millstream.text.tokenize.plan import TokenizePlan
from millstream.write.job import Job

_TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True)
class JobDirectory(Job):
    """The output directory of a tokenize job, which is marked by its plan."""

    mark_name: ClassVar[str] = PLAN
    unfinished: ClassVar[str] = rf"\d{{5}}-\d{{5,}}\..+|\.(\d{{5}}|finish)\.lock|.+{TEMPORARY}"

    @property
    def report(self) -> Path:
        """The report."""
        return self.out / REPORT

    def counts(self, stage: str, number: int) -> Path:
        """The counts of a task."""
        return self.tasks / f"{number:05d}.{stage}.json"

    def hashes(self, number: int) -> Path:
        """The smallest hashes of a task."""
        return self.tasks / f"{number:05d}.hashes"

    def parts(self, plan: TokenizePlan, side: str) -> Path:
        """Where tasks write the parts of a side when they tokenize."""
        return (self.out if plan.shuffle is None else self.unshuffled) / side

    def read_plan(self) -> TokenizePlan | None:
        """The plan, if there is one."""
        try:
            return TokenizePlan.from_json(read_whole(self.mark))
        except FileNotFoundError:
            return None

    def discard(self, plan: TokenizePlan) -> None:
        """Remove the job and what its tasks have written."""
        for side in plan.sides:
            for part in (self.out / side).glob(f"*{PART_SUFFIX}"):
                part.unlink()
        for directory in (self.unshuffled, self.tasks):
            shutil.rmtree(directory, ignore_errors=True)
        self.discard_unfinished()

    def store_tokenizer(self, files: Mapping[str, str]) -> None:
        """Store the tokenizer's files for `finish`, which has no tokenizer."""
        directory = self.tasks / _TOKENIZER
        shutil.rmtree(directory, ignore_errors=True)  # of a job whose plan never was stored
        directory.mkdir()
        for name, content in files.items():
            publish(directory / name, content)

    def keep_tokenizer(self, side: str) -> None:
        """Store the tokenizer's files beside the dataset of a side."""
        directory = self.out / side
        for leftover in directory.glob(f"{_TOKENIZER}*.tmp"):  # of a runner that was killed
            leftover.unlink()
        for file in sorted((self.tasks / _TOKENIZER).glob(f"{_TOKENIZER}*")):
            if file.suffix != ".tmp":
                publish_checked(directory / file.name, file.read_bytes().decode())

    def set_threshold(self, compute: Callable[[], int]) -> TokenizePlan:
        """Store in the plan which hashes are for validation, unless another runner has."""
        with self.hold("plan", wait=True):
            plan = self.read_plan()
            if plan is None:
                raise MissingDataError(f"{self.mark}: gone; the job was finished, or removed")
            if plan.threshold is None:
                plan = replace(plan, threshold=compute())
                publish(self.mark, plan.to_json())
            return plan

    def refuse_missing(self, stage: str, numbers: range, plan: TokenizePlan) -> None:
        """Refuse to finish while tasks have not been run, and name them."""
        missing = [n for n in numbers if not self.counts(stage, n).exists()]
        if missing:
            named = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise MissingDataError(
                f"{self.out}: {len(missing):,} of {len(plan.tasks):,} tasks have not been run: "
                f"{named}; run them (--task i/n runs those with number % n == i), then finish"
            )

    def is_written(self, plan: TokenizePlan) -> bool:
        """True if all datasets are finished, so that only files of the job are left to remove."""
        return all(is_finished(self.out / side) for side in plan.sides)


def part_is_finished(directory: Path, number: int) -> bool:
    """True if a part of a dataset is written, or joined with the others already."""
    return (directory / f"{number:05d}{PART_SUFFIX}").exists() or is_finished(directory)


def is_finished(directory: Path) -> bool:
    """True if a dataset is finished."""
    return (directory / MANIFEST_NAME).exists()
