"""Where the files of a job lie, and how runners come together there."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.atomic import hold_lock, publish
from penstock.errors import DatasetExistsError, MissingDataError
from penstock.formats.detection import PLAN
from penstock.formats.stream import MANIFEST_NAME, PART_SUFFIX
from penstock.text.prepare.plan import Plan

_TASKS, _UNSHUFFLED, _REPORT = "tasks", "unshuffled", "report.json"
_TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True)
class Place:
    """An output directory."""

    out: Path

    @property
    def plan(self) -> Path:
        """The plan, for as long as it is not done."""
        return self.out / PLAN

    @property
    def tasks(self) -> Path:
        """Where tasks leave what they counted."""
        return self.out / _TASKS

    @property
    def unshuffled(self) -> Path:
        """Where the dataset lies before it is shuffled."""
        return self.out / _UNSHUFFLED

    @property
    def report(self) -> Path:
        """The report."""
        return self.out / _REPORT

    def statistics(self, stage: str, number: int) -> Path:
        """What a task has counted."""
        return self.tasks / f"{number:05d}.{stage}.json"

    def hashes(self, number: int) -> Path:
        """The hashes that a task has kept."""
        return self.tasks / f"{number:05d}.hashes"

    def parts(self, plan: Plan, side: str) -> Path:
        """Where the tasks that tokenize write the parts of a side."""
        return (self.out if plan.shuffle is None else self.unshuffled) / side

    def read_plan(self) -> Plan | None:
        """The plan, if there is one."""
        try:
            return Plan.from_json(self.plan.read_bytes())
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def hold(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Hold a lock among runners; False if another one does, or if there is no job any more."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(self.tasks, name, wait=wait))
            except (DatasetExistsError, FileNotFoundError):
                yield False
                return
            yield True

    def begin(
        self,
        head: Plan,
        cut: Callable[[], Plan],
        tokenizer_files: Callable[[], Mapping[str, str]],
    ) -> Plan:
        """Agree on a plan with whoever was here before, or `cut` the tasks and write it down.

        The tokenizer's files are kept beside a new plan, for `finish`, which has no tokenizer.
        """
        is_new = not self.out.exists()
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise DatasetExistsError(f"{self.out}: a file is in the way of the directory") from None
        self._refuse_others()
        self.tasks.mkdir(exist_ok=True)
        with self.hold("plan", wait=True) as is_ours:
            if not is_ours:
                raise MissingDataError(
                    f"{self.out}: another runner has just given up, or finished; run it again"
                )
            found = self.read_plan()
            if found is None:
                try:
                    self._refuse_others()  # another runner may have finished just now
                    found = cut()
                    self._store_tokenizer(tokenizer_files())
                    publish(self.plan, found.to_json())
                except BaseException:
                    shutil.rmtree(self.tasks)
                    if is_new:
                        self.out.rmdir()
                    raise
                return found
            relaxed = head.relax(found)
            head.check_agrees(relaxed, self.plan)
            if relaxed != found:
                publish(self.plan, relaxed.to_json())
            return relaxed

    def _store_tokenizer(self, files: Mapping[str, str]) -> None:
        directory = self.tasks / _TOKENIZER
        shutil.rmtree(directory, ignore_errors=True)  # of another one, whose plan never was written
        directory.mkdir()
        for name, content in files.items():
            publish(directory / name, content)

    def keep_tokenizer(self, side: str) -> None:
        """Put the tokenizer's files beside the dataset of a side."""
        directory = self.out / side
        for leftover in directory.glob(f"{_TOKENIZER}*.tmp"):  # of a runner that was killed
            leftover.unlink()
        for file in sorted((self.tasks / _TOKENIZER).glob(f"{_TOKENIZER}*")):
            if file.suffix != ".tmp":
                publish(directory / file.name, file.read_bytes().decode())

    def set_threshold(self, compute: Callable[[], int]) -> Plan:
        """Note in the plan which hashes are for validation, unless another runner has."""
        with self.hold("plan", wait=True):
            plan = self.read_plan()
            if plan is None:
                raise MissingDataError(f"{self.plan}: somebody has removed it, or finished the job")
            if plan.threshold is None:
                plan = replace(plan, threshold=compute())
                publish(self.plan, plan.to_json())
            return plan

    def _refuse_others(self) -> None:
        """Go on with a plan, or begin in an empty directory."""
        if self.plan.exists():
            return
        if self.report.exists():
            raise DatasetExistsError(
                f"{self.out}: a finished dataset is here; choose another path, and open both with "
                "penstock.open([a, b])"
            )
        for path in sorted(self.out.iterdir()):
            if path.name != _TASKS and not path.name.startswith(f"{PLAN}."):
                raise DatasetExistsError(
                    f"{path}: is in the way, as is all that is here; choose another path"
                )

    def refuse_missing(self, stage: str, numbers: range, plan: Plan) -> None:
        """Name the tasks that have not been run."""
        missing = [n for n in numbers if not self.statistics(stage, n).exists()]
        if missing:
            named = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise MissingDataError(
                f"{self.out}: {len(missing):,} of {len(plan.tasks):,} tasks have not been run: "
                f"{named}; run them (--task i/n runs those with number % n == i), then finish"
            )

    def is_written(self, plan: Plan) -> bool:
        """Whether all datasets are whole, so that only the rest of the files has to go."""
        return all(is_finished(self.out / side) for side in plan.split.sides)

    def clear(self) -> None:
        """Remove everything that is not the result; the plan last, since it says to go on."""
        for directory in (self.unshuffled, self.tasks):
            shutil.rmtree(directory, ignore_errors=True)
        for leftover in self.out.glob("*.json.*.tmp"):  # of a runner that was killed
            leftover.unlink(missing_ok=True)
        self.plan.unlink(missing_ok=True)


def part_is_finished(directory: Path, number: int) -> bool:
    """Whether a part of a dataset is written, and perhaps joined with the others already."""
    return (directory / f"{number:05d}{PART_SUFFIX}").exists() or is_finished(directory)


def is_finished(directory: Path) -> bool:
    """Whether a dataset is whole."""
    return (directory / MANIFEST_NAME).exists()
