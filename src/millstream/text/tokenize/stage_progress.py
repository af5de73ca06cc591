"""`StageProgress`: how far a stage is, summed over its tasks."""

from millstream.progress import OnProgress, Progress
from millstream.text.tokenize.stage import Stage


class StageProgress:
    """Adds up what tasks report, and passes it on."""

    def __init__(self, stage: Stage, numbers: list[int], report: OnProgress | None) -> None:
        self._stage, self._report = stage, report
        self._sizes = {number: stage.size_bytes(number) for number in numbers}
        self.done = {number for number in numbers if stage.is_done(number)}
        """numbers of the tasks that are done"""
        self.todo = [number for number in numbers if number not in self.done]
        """numbers of the tasks that were left to do at first"""
        self._running = dict[int, Progress]()

    def __call__(self, number: int, progress: Progress, is_done: bool) -> None:
        """Take note of one task."""
        self._running[number] = progress
        if is_done:
            self.done.add(number)
        if self._report is None:
            return
        # The sizes of tasks are estimates: one that is running counts at most as much as it will
        # when it is done.
        done = sum(self._sizes[number] for number in self.done)
        for number, each in self._running.items():
            if number not in self.done:
                done += min(each.processed, self._sizes[number])
        self._report(
            Progress(
                stage=self._stage.activity,
                done=done,
                total=sum(self._sizes.values()),
                unit="bytes",
                processed=sum(each.processed for each in self._running.values()),
                num_tasks=len(self._sizes),
                num_tasks_done=len(self.done),
                num_tokens=sum(each.num_tokens for each in self._running.values()),
            )
        )
