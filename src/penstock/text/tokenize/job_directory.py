"""Where the files of a job lie, and how runners come together there."""

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

_TASKS, _UNSHUFFLED, _REPORT = "tasks", "unshuffled", "report.json"
_TOKENIZER = "tokenizer"
_RUNNERS = ".runners"  # whoever works on a plan holds a lock on it, with the others
_OF_A_PART = re.compile(
    rf"\d{{5}}-\d{{5,}}\..+|\.\d{{5}}\.lock|\d{{5}}{re.escape(PART_SUFFIX)}({TEMPORARY})?"
)


@dataclass(frozen=True, slots=True)
class JobDirectory:
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

    def parts(self, plan: TokenizePlan, side: str) -> Path:
        """Where the tasks that tokenize write the parts of a side."""
        return (self.out if plan.shuffle is None else self.unshuffled) / side

    def read_plan(self) -> TokenizePlan | None:
        """The plan, if there is one."""
        try:
            return TokenizePlan.from_json(read_whole(self.plan))
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

    @contextlib.contextmanager
    def work(
        self,
        head: TokenizePlan,
        cut: Callable[[], TokenizePlan],
        tokenizer_files: Callable[[], Mapping[str, str]],
    ) -> Iterator[TokenizePlan]:
        """Agree on a plan, and keep others from replacing it while the block runs.

        The tokenizer's files are kept beside a new plan, for `finish`, which has no tokenizer. If
        the block fails and no task is done, by anybody, the plan goes: the next call may have
        another one.
        """
        with new_directory(self.out), contextlib.ExitStack() as stack:
            plan = self._begin(head, cut, tokenizer_files, stack)
            try:
                yield plan
            except BaseException:
                stack.close()
                with self.hold("plan", wait=True) as is_ours:
                    if is_ours and self._discard_worthless(plan):
                        shutil.rmtree(self.tasks, ignore_errors=True)
                raise

    def _begin(
        self,
        head: TokenizePlan,
        cut: Callable[[], TokenizePlan],
        tokenizer_files: Callable[[], Mapping[str, str]],
        stack: contextlib.ExitStack,
    ) -> TokenizePlan:
        """Agree on a plan with whoever was here before, or `cut` the tasks and write it down."""
        self._refuse_others()
        self.tasks.mkdir(exist_ok=True)
        with self.hold("plan", wait=True) as is_ours:
            if not is_ours:
                raise MissingDataError(
                    f"{self.out}: another runner has just given up, or finished; run it again"
                )
            plan = self._agreed(head)
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

    def _agreed(self, head: TokenizePlan) -> TokenizePlan | None:
        """The plan that is here; None if there is none, or one that was not worth keeping."""
        found = self.read_plan()
        if found is None:
            return None
        relaxed = head.relax(found)
        if head.differences(relaxed) and self._discard_worthless(found):
            return None
        head.check_agrees(relaxed, self.plan)
        if relaxed != found:
            publish(self.plan, relaxed.to_json())
        return relaxed

    def _discard_worthless(self, plan: TokenizePlan) -> bool:
        """Remove a plan that nobody works on and that no task of is done; whether that was so."""
        done = [*self.tasks.glob("*.json"), *self.tasks.glob("*.hashes")]
        for side in plan.split.sides:
            done += self.parts(plan, side).glob(f"*{PART_SUFFIX}")
        if done or any(is_finished(self.out / side) for side in plan.split.sides):
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
        """Remove what tasks have written, finished or not."""
        for side in plan.split.sides:
            parts = self.parts(plan, side)
            for path in parts.glob("*") if parts.is_dir() else ():
                if _OF_A_PART.fullmatch(path.name):
                    path.unlink()
            with contextlib.suppress(OSError):  # `out` itself, or what is not ours is in it
                parts.rmdir()
        with contextlib.suppress(OSError):
            self.unshuffled.rmdir()

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
                publish_checked(directory / file.name, file.read_bytes().decode())

    def set_threshold(self, compute: Callable[[], int]) -> TokenizePlan:
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
                f"{self.out}: a finished dataset is here, of other files or options; choose "
                "another path, or remove this one"
            )
        for path in sorted(self.out.iterdir()):
            if path.name != _TASKS and not path.name.startswith(f"{PLAN}."):
                raise DatasetExistsError(
                    f"{self.out}: is not empty ({path.name} is there); choose another path, or an "
                    "empty directory"
                )

    def refuse_missing(self, stage: str, numbers: range, plan: TokenizePlan) -> None:
        """Name the tasks that have not been run."""
        missing = [n for n in numbers if not self.statistics(stage, n).exists()]
        if missing:
            named = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise MissingDataError(
                f"{self.out}: {len(missing):,} of {len(plan.tasks):,} tasks have not been run: "
                f"{named}; run them (--task i/n runs those with number % n == i), then finish"
            )

    def is_written(self, plan: TokenizePlan) -> bool:
        """Whether all datasets are whole, so that only the rest of the files has to go."""
        return all(is_finished(self.out / side) for side in plan.split.sides)

    def clear(self) -> None:
        """Remove everything that is not the result; the plan last, since it says to go on."""
        for directory in (self.unshuffled, self.tasks):
            shutil.rmtree(directory, ignore_errors=True)
        for of_killed in ("*.json.*.tmp", f"*{CHECKSUMS}.*.tmp"):
            for leftover in self.out.glob(of_killed):
                leftover.unlink(missing_ok=True)
        self.plan.unlink(missing_ok=True)


def part_is_finished(directory: Path, number: int) -> bool:
    """Whether a part of a dataset is written, and perhaps joined with the others already."""
    return (directory / f"{number:05d}{PART_SUFFIX}").exists() or is_finished(directory)


def is_finished(directory: Path) -> bool:
    """Whether a dataset is whole."""
    return (directory / MANIFEST_NAME).exists()
