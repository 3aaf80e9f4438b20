"""How the whole suite runs: in which order, what beside what, and what a failing test names.

Tests that wait (for an API server, a time-out) run beside tests that compute. Therefore
pytest-xdist has a worker for each core, and a spare one for what waits most of its time. The long
tests on a cluster keep both cores busy: they run one after the other, with nothing beside them.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

from regroup.local import processes, torchrun_run
from tests.support import published_tally
from tests.support.warm_workers import WarmWorkers

_STAGES = ("apiserver", "cluster")
_MOST_WORKERS = 6
_SHARED = {
    "tests/devcluster/test_cluster.py": "nodes",
    "tests/e2e/*": "nodes",
    "*_apiserver.py": "an API server",
    "tests/demo/*": "a Prometheus",
}
"""Pattern of paths -> what their tests share, what takes longest first. Other tests share what
their file makes. Two clusters of nodes beside each other would be slower than one after the other.
"""
_WAITS = (
    "an API server",
    "tests/chart/test_fired_alerts.py",
    "tests/operator/controller/test_coordination.py",
    "tests/trainer/agent/*",
)
"""Patterns of what tests share: these wait more than they compute. They leave the cores to others.
"""
_SHRINKING_SECONDS = 300.0
"""For so long does hypothesis look for a smaller example of what fails."""
_LINES = 20
"""How many lines of each log a failing test shows: those of the last generations."""
_FOLDERS = pytest.StashKey[dict[tuple[str, str], list[Path]]]()
"""Node (a test, a module, the session) and fixture -> the folders that the fixture made for it."""

# Else each process has a thread for each core. Beside other processes, those of a small model spin
# while they wait for one another. Tests of the default remove it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine makes an example slow: the limit of the whole test has to do.
hypothesis.settings.register_profile("tests", print_blob=True, deadline=None)
hypothesis.settings.load_profile("tests")


class SharingFolder(pytest.Package):
    """A folder with a conftest.py: its fixtures of scope `package` end with its last test.

    For pytest, only a folder with an `__init__.py` is a package. In any other, these fixtures last
    as long as the session, and nodes that nobody uses compute beside all later tests.
    """

    def setup(self) -> None:
        """Nothing: there is no `__init__.py` to import."""


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> SharingFolder | None:
    """Called for each folder; None leaves it to pytest."""
    if not (path / "conftest.py").exists():
        return None
    return SharingFolder.from_parent(parent, path=path)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Give tests that share something expensive to the same worker, in the order of collection.

    What waits goes to the spare worker first. It ends when nothing of that is left, because more
    workers than cores that compute would be late for their deadlines.
    """

    _spare: WorkerController | None = None

    def schedule(self) -> None:
        """Called when all workers have collected, and when one replaces another."""
        if self.collection is None and self.numnodes > _workers_that_compute():
            self._spare = self.nodes[-1]
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        fitting = (n for n in self.workqueue if _waits(n) is (node is self._spare))
        if self._spare is not None and (first := next(fitting, None)):
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        is_over = node is self._spare and not any(map(_waits, self.workqueue))
        if not is_over:
            super()._reschedule(node)
        elif not node.shutting_down:
            node.shutdown()


def _waits(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _WAITS)


def group(nodeid: str) -> str:
    """What the test shares with others."""
    file = nodeid.partition("::")[0]
    return next((thing for pattern, thing in _SHARED.items() if fnmatch(file, pattern)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling:
    """Called by pytest-xdist, if it is in use."""
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What `-n auto` means: the spare worker too."""
    return _workers_that_compute() + 1


def _workers_that_compute() -> int:
    """More would cost memory and have nothing to do."""
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)


@pytest.hookimpl(tryfirst=True)  # before -m selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One process runs quick tests first, then a real API server, then a real cluster.

    Several begin with what takes longest.
    """
    for item in items:
        if "template" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ranks)
        _leave_time_to_shrink(item)
    items.sort(key=_stage)
    if hasattr(config, "workerinput"):
        slow = Counter(group(item.nodeid) for item in items if item.get_closest_marker("slow"))
        first = list(dict.fromkeys(_SHARED.values()))
        items.sort(key=lambda item: _rank(group(item.nodeid), first, slow))


def _leave_time_to_shrink(item: pytest.Item) -> None:
    """Else the time limit ends one of the many tries, and hypothesis reports it as one more failure
    that it cannot repeat: a flaky one.
    """
    usual = float(item.config.getini("timeout") or 0.0)
    is_searched = isinstance(item, pytest.Function) and hypothesis.is_hypothesis_test(item.obj)
    if usual and is_searched and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(usual + _SHRINKING_SECONDS))


def _rank(name: str, first: list[str], slow: Mapping[str, int]) -> tuple[int, int]:
    """The place of a group: those of `first` in their order, then the one with most slow tests."""
    return first.index(name) if name in first else len(first), -slow[name]


def _stage(item: pytest.Item) -> int:
    return max(
        (_STAGES.index(name) + 1 for name in _STAGES if item.get_closest_marker(name)), default=0
    )


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Remember the folders that a fixture makes with its argument `tmp_path_factory`."""
    if "tmp_path_factory" not in fixturedef.argnames:
        return (yield)
    factory = request.getfixturevalue("tmp_path_factory")
    made = request.config.stash.setdefault(_FOLDERS, {})
    folders = made.setdefault((request.node.nodeid, fixturedef.argname), [])
    plain = factory.mktemp

    def mktemp(*arguments: Any, **options: Any) -> Path:
        folder: Path = plain(*arguments, **options)
        folders.append(folder)
        return folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factory, "mktemp", mktemp)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails names the folders of its files and logs, and its seed. It shows the ends of
    the logs, because the folders of a continuous integration are gone when somebody reads this.
    """
    report = yield
    if report.failed and call.excinfo is not None:
        if folders := folders_of(item):
            report.sections.append(("Files and logs", "\n".join(map(str, folders))))
            report.sections.extend(ends_of_logs(folders))
        if (seed := seed_of(call.excinfo)) is not None:
            report.sections.append(("Seed", str(seed)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what became of the jobs that other projects publish, where tests have tried it."""
    reports = terminalreporter.getreports("passed")
    found = published_tally.lines(pair for report in reports for pair in report.user_properties)
    if found:
        terminalreporter.section("jobs that other projects publish")
        for line in found:
            terminalreporter.write_line(line)


def ends_of_logs(folders: Iterable[Path]) -> list[tuple[str, str]]:
    """Path and last lines of each log in the folders."""
    logs = sorted(log for folder in folders for log in folder.rglob("*.log"))
    texts = [log.read_text(errors="replace").splitlines()[-_LINES:] for log in logs]
    return [(f"The end of {log}", "\n".join(text)) for log, text in zip(logs, texts, strict=True)]


def folders_of(item: pytest.Item) -> list[Path]:
    """The folders of the test and of the fixtures that it shares with others."""
    own, fixtures = {node.nodeid for node in item.listchain()}, getattr(item, "fixturenames", ())
    made = item.config.stash.get(_FOLDERS, {})
    return [
        folder
        for (node, fixture), folders in made.items()
        if node in own and fixture in fixtures
        for folder in folders
    ]


def seed_of(failure: pytest.ExceptionInfo[BaseException]) -> object:
    """The argument `seed` of the test that failed; None where it has none."""
    tests = (entry for entry in failure.traceback if entry.name.startswith("test_"))
    return next((test.locals["seed"] for test in tests if "seed" in test.locals), None)


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """A command that ran in this process ignores Ctrl-C and SIGTERM at its end; processes that
    later tests start would inherit that.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    former = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, former, strict=True):
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def _workers() -> Iterator[WarmWorkers]:
    """Shared, since only its start is slow."""
    workers = WarmWorkers()
    yield workers
    workers.close()


@pytest.fixture
def warm_workers(_workers: WarmWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a local run are forks of a process that has imported torch."""
    monkeypatch.setattr(processes, "_start", _workers.start)
    popen = SimpleNamespace(Popen=_workers.popen, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(torchrun_run, "subprocess", popen)
