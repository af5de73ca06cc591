"""A pytest plugin of `make test`, which runs what failed once more, alone.

The first run ends with status 1 only if every test was run. pytest-xdist also ends with 1 after
errors of collection, and when it gives up replacing crashed workers: then the tests that failed say
nothing about the others, so the status is 2, and nothing is run again.

The second run, with `--last-failed`, lists under "flaky" what passes now, and succeeds only if all
that failed before passes: a test that is skipped, or that no longer exists, does not.
"""

import pytest


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Rerun() if config.getoption("lf") else _FirstRun())


class _FirstRun:
    """Tells whether all tests were run."""

    def __init__(self):
        self._collected = set()
        self._reported = set()
        self._has_errors = False

    def pytest_collectreport(self, report):
        self._has_errors |= report.failed

    def pytest_xdist_node_collection_finished(self, ids):
        self._collected.update(ids)

    def pytest_runtest_logreport(self, report):
        self._reported.add(report.nodeid)

    def pytest_sessionfinish(self, session, exitstatus):
        is_whole = not self._has_errors and self._collected <= self._reported
        if exitstatus == pytest.ExitCode.TESTS_FAILED and not is_whole:
            session.exitstatus = pytest.ExitCode.INTERRUPTED

    def pytest_terminal_summary(self, terminalreporter):
        if not_run := self._collected - self._reported:
            terminalreporter.line(f"{len(not_run):,} tests were not run", red=True)


class _Rerun:
    """Tells which of the tests that failed before pass now."""

    def __init__(self):
        self._failed = set()
        self._passed = set()

    def pytest_sessionstart(self, session):
        self._failed.update(session.config.cache.get("cache/lastfailed", {}))

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._passed.discard(report.nodeid)  # the test passed, but not its teardown
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == pytest.ExitCode.OK and not self._failed <= self._passed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if flaky := sorted(self._failed & self._passed):
            terminalreporter.section("failed before, passed alone", yellow=True)
            terminalreporter.line("flaky:")
            for name in flaky:
                terminalreporter.line(f"  {name}")
