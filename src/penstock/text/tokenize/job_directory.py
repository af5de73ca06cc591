"""`JobDirectory`: where the files of a tokenize job lie, and how runners agree there."""

import contextlib
import fcntl
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.atomic import TEMPORARY, hold_lock, publish, refuse_if_held
from penstock.errors import DatasetExistsError, MissingDataError
from penstock.formats.checksums import CHECKSUMS, publish_checked
from penstock.formats.files import read_whole
from penstock.formats.job_marks import PLAN
from penstock.formats.stream import MANIFEST_NAME, PART_SUFFIX
from penstock.new_directory import new_directory
from penstock.text.tokenize.plan import TokenizePlan
from penstock.write.job_agreement import refuse_files, refuse_to_continue, refuse_to_replace

_TASKS, _UNSHUFFLED, _REPORT = "tasks", "unshuffled", "report.json"
_TOKENIZER = "tokenizer"
_RUNNERS = ".runners"  # all runners of a plan share a lock on this
_OF_A_PART = re.compile(
    rf"\d{{5}}-\d{{5,}}\..+|\.\d{{5}}\.lock|\d{{5}}{re.escape(PART_SUFFIX)}({TEMPORARY})?"
)


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """The output directory of a tokenize job."""

    out: Path

    @property
    def plan(self) -> Path:
        """The plan; it is there as long as the job is not finished."""
        return self.out / PLAN

    @property
    def tasks(self) -> Path:
        """Where tasks store their counts."""
        return self.out / _TASKS

    @property
    def unshuffled(self) -> Path:
        """Where the dataset is written before it is shuffled."""
        return self.out / _UNSHUFFLED

    @property
    def report(self) -> Path:
        """The report."""
        return self.out / _REPORT

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
            return TokenizePlan.from_json(read_whole(self.plan))
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def hold(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Hold a lock among runners. Yields False if another holds it, or if the job is gone."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(self.tasks, name, wait=wait))
            except (DatasetExistsError, FileNotFoundError):
                yield False
                return
            yield True

    @contextlib.contextmanager
    def begin(
        self,
        head: TokenizePlan,
        cut: Callable[[], TokenizePlan],
        tokenizer_files: Callable[[], Mapping[str, str]],
    ) -> Iterator[TokenizePlan]:
        """Agree on a plan, and keep others from replacing it while the block runs.

        The tokenizer's files are stored beside a new plan, for `finish`, which has no tokenizer. If
        the block fails before any runner has done a task, the plan is removed, so that the next
        call may have another one.
        """
        with new_directory(self.out), contextlib.ExitStack() as stack:
            plan = self._agree(head, cut, tokenizer_files, stack)
            try:
                yield plan
            except BaseException:
                stack.close()
                with self.hold("plan", wait=True) as is_ours:
                    if is_ours and self._discard_worthless(plan):
                        shutil.rmtree(self.tasks, ignore_errors=True)
                raise

    def _agree(
        self,
        head: TokenizePlan,
        cut: Callable[[], TokenizePlan],
        tokenizer_files: Callable[[], Mapping[str, str]],
        stack: contextlib.ExitStack,
    ) -> TokenizePlan:
        """Agree with the plan that is here, or `cut` the tasks and store a new one."""
        self._refuse_others()
        self.tasks.mkdir(exist_ok=True)
        with self.hold("plan", wait=True) as is_ours:
            if not is_ours:
                raise MissingDataError(
                    f"{self.out}: another runner has just finished or given up; run this again"
                )
            plan = self._find_plan(head)
            if plan is None:
                try:
                    self._refuse_others()  # another runner may have finished just now
                    plan = cut()
                    self._store_tokenizer(tokenizer_files())
                    publish(self.plan, plan.to_json())
                except BaseException:
                    shutil.rmtree(self.tasks)
                    raise
            runners = stack.enter_context((self.tasks / _RUNNERS).open("ab"))
            fcntl.flock(runners, fcntl.LOCK_SH)
            return plan

    def _find_plan(self, head: TokenizePlan) -> TokenizePlan | None:
        """The plan that is here; None if there is none, or if it was not worth keeping."""
        found = self.read_plan()
        if found is None:
            return None
        relaxed = head.relax(found)
        differences = head.differences(relaxed)
        if differences and self._discard_worthless(found):
            return None
        refuse_to_continue(self.plan, differences)
        if relaxed != found:
            publish(self.plan, relaxed.to_json())
        return relaxed

    def _discard_worthless(self, plan: TokenizePlan) -> bool:
        """Remove a plan if nobody works on it and no task is done; returns whether it did."""
        done = [*self.tasks.glob("*.json"), *self.tasks.glob("*.hashes")]
        for side in plan.sides:
            done += self.parts(plan, side).glob(f"*{PART_SUFFIX}")
        if done or any(is_finished(self.out / side) for side in plan.sides):
            return False
        with (self.tasks / _RUNNERS).open("ab") as runners:
            try:
                fcntl.flock(runners, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for lock in self.tasks.glob(".*-*.lock"):  # tasks on other machines may outlive it
                    refuse_if_held(lock)
            except (BlockingIOError, DatasetExistsError):
                return False
            self.remove_parts(plan)
            self.plan.unlink(missing_ok=True)
        return True

    def remove_parts(self, plan: TokenizePlan) -> None:
        """Remove what tasks have written, whether it is finished or not."""
        for side in plan.sides:
            parts = self.parts(plan, side)
            for path in parts.glob("*") if parts.is_dir() else ():
                if _OF_A_PART.fullmatch(path.name):
                    path.unlink()
            with contextlib.suppress(OSError):  # it is `out` itself, or has files of others
                parts.rmdir()
        with contextlib.suppress(OSError):
            self.unshuffled.rmdir()

    def _store_tokenizer(self, files: Mapping[str, str]) -> None:
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
                raise MissingDataError(f"{self.plan}: gone; the job was finished, or removed")
            if plan.threshold is None:
                plan = replace(plan, threshold=compute())
                publish(self.plan, plan.to_json())
            return plan

    def _refuse_others(self) -> None:
        """Allow only a plan to continue, or an empty directory to begin in."""
        # Listed first: what another runner writes, it writes after its plan.
        names = [path.name for path in self.out.iterdir()]
        if self.plan.exists():
            return
        if self.report.exists():
            refuse_to_replace(self.out, ["of other files or options"])
        refuse_files(self.out, {n for n in names if n != _TASKS and not n.startswith(f"{PLAN}.")})

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

    def clear(self) -> None:
        """Remove everything but the result; the plan last, since it marks what is unfinished."""
        for directory in (self.unshuffled, self.tasks):
            shutil.rmtree(directory, ignore_errors=True)
        for of_killed in ("*.json.*.tmp", f"*{CHECKSUMS}.*.tmp"):
            for leftover in self.out.glob(of_killed):
                leftover.unlink(missing_ok=True)
        self.plan.unlink(missing_ok=True)


def part_is_finished(directory: Path, number: int) -> bool:
    """True if a part of a dataset is written, or joined with the others already."""
    return (directory / f"{number:05d}{PART_SUFFIX}").exists() or is_finished(directory)


def is_finished(directory: Path) -> bool:
    """True if a dataset is finished."""
    return (directory / MANIFEST_NAME).exists()
