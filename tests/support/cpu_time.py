"""How many CPU seconds the parts of the suite take: `make test ARGS="-p tests.support.cpu_time"`.

On a machine that does other things too, CPU seconds are a better measure than minutes. Each worker
of pytest enters its own control group, which needs root. So all processes that its tests start are
counted, also those for which nobody waits, and the nodes of its end-to-end cluster.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from devcluster import cgroups

CPU_SECONDS = "cpu_seconds"
_VERSION_1 = cgroups.MOUNT / "cpuacct"
_ACCOUNTS = _VERSION_1 if _VERSION_1.is_dir() else cgroups.MOUNT


@dataclass
class Part:
    """What the tests of one folder, or of one file of a large one, took."""

    tests: set[str] = field(default_factory=set)
    wall: float = 0.0
    cpu: float = 0.0


@dataclass(eq=False)  # pluggy keeps plugins in sets
class CpuTime:
    """The plugin: in a worker it measures, in the first process it sums up."""

    groups: tuple[str, ...]
    """That of the worker, that of its cluster, and where the worker is while it uses the cluster,
    if CPU weight and CPU time have one hierarchy.
    """
    before: float = field(init=False)
    parts: dict[str, Part] = field(default_factory=lambda: defaultdict(Part))

    def __post_init__(self) -> None:
        self.before = self._used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the CPU seconds since the report before."""
        report = yield
        now = self._used()
        # A cluster that is gone has taken what it used with it.
        report.user_properties.append((CPU_SECONDS, max(0.0, now - self.before)))
        self.before = now
        return report

    def _used(self) -> float:
        return sum(map(used, self.groups))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a report to its part."""
        part = self.parts[part_of(report.nodeid)]
        part.tests.add(report.nodeid)
        part.wall += report.duration
        part.cpu += sum(
            float(str(value)) for name, value in report.user_properties if name == CPU_SECONDS
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, the dearest part first."""
        terminalreporter.section("minutes of the parts of the suite")
        terminalreporter.write_line(f"{'part':40}{'tests':>7}{'wall':>8}{'CPU':>8}")
        rows = sorted(self.parts.items(), key=lambda row: -row[1].cpu)
        whole = Part(
            set().union(*(part.tests for part in self.parts.values())),
            sum(part.wall for part in self.parts.values()),
            sum(part.cpu for part in self.parts.values()),
        )
        for name, part in [*rows, ("all", whole)]:
            terminalreporter.write_line(
                f"{name:40}{len(part.tests):7}{part.wall / 60:8.1f}{part.cpu / 60:8.1f}"
            )


def part_of(nodeid: str) -> str:
    """The folder of a test below tests/, two levels deep."""
    return "/".join(Path(nodeid.partition("::")[0]).parts[1:3]).removesuffix(".py")


def used(group: str) -> float:
    """CPU seconds of a group so far; 0 when it does not exist."""
    try:
        if _ACCOUNTS == _VERSION_1:
            return int((_ACCOUNTS / group / "cpuacct.usage").read_text()) / 1e9
        return int((_ACCOUNTS / group / "cpu.stat").read_text().split()[1]) / 1e6
    except FileNotFoundError:
        return 0.0


def pytest_configure(config: pytest.Config) -> None:
    """Enter the group, and begin to count."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    group = f"regroup-tests/{worker or 'first'}"
    (_ACCOUNTS / group).mkdir(parents=True, exist_ok=True)
    (_ACCOUNTS / group / "cgroup.procs").write_text(str(os.getpid()))
    cluster = f"regroup/e2e{worker}"
    cpu_time = CpuTime((group, cluster, f"{cluster}-user"))
    config.pluginmanager.register(cpu_time, "cpu-time")
