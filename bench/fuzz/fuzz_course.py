"""The course of a fuzz: quiet samples and waves of hostile jobs take turns, so that both kinds of
samples see the same machine. The ordinary tenant is measured while the hostile one works, until all
jobs of the wave are answered. Beside the jobs of the largest wave the operator is started again.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.fuzz.drawn_templates import DrawnTemplates
from bench.fuzz.findings import Findings
from bench.fuzz.hostile_client import CHANGING
from bench.fuzz.hostile_tenant import HostileTenant
from bench.fuzz.judgement import last_line, troubles
from bench.fuzz.quiet_jobs import QuietJobs
from bench.fuzz.server_refusals import answers
from bench.fuzz.size import FuzzSize
from bench.harness import shown
from tests.support.kube_api import Api, Namespace
from tests.support.operator_process import OperatorProcess, installed_operator

WAVE = 100
"""Drawn jobs that the API server takes between two pauses."""
WAVES = (*[WAVE] * 5, 10 * WAVE)
"""One after the other, and again. The jobs of a wave all exist at a time."""
WAVE_SECONDS = 60.0
"""For WAVE jobs, and more for more: the hostile tenant rests after so long, though jobs of the wave
may have no answer yet.
"""
MOST_RATIO = 2.0
UNITS = {
    "jobs": "count",
    "templates": "count",
    "dry_runs": "count",
    "refused_by_api_server": "count",
    "tracebacks": "count",
    "refusals_without_field": "count",
    "refusals_not_foreseen": "count",
    "refusals_known": "count",
    "silent_jobs": "count",
    "hostile_requests": "1/s",
    "p99_quiet_ms": "ms",
    "p99_beside_ms": "ms",
    "p99_ratio": "ratio",
    "restart_seconds": "s",
}


@dataclass
class FuzzOutcome:
    """What was found."""

    findings: Findings = field(default_factory=Findings)
    exit_code: int = 0
    """Of the operator, when it is asked to end: the first that is not 0."""
    troubles: list[str] = field(default_factory=list)
    """Lines of its log."""
    quiet: list[float] = field(default_factory=list)
    """Milliseconds from events to actions, without hostile jobs."""
    beside: list[float] = field(default_factory=list)
    """The same beside them."""
    requests: float = 0.0
    """A second, of the hostile tenant while it worked."""
    restarts: list[float] = field(default_factory=list)
    """Seconds from a start of the operator beside the largest wave until the ordinary tenant has
    all that it asked for.
    """

    def note_end(self, exit_code: int) -> None:
        """Note how the operator has ended."""
        self.exit_code = self.exit_code or exit_code

    def read_log(self, log: str) -> None:
        """Note what the operator's log reports. A refusal may come after a job has been judged.
        What becomes of jobs that change all the time is another in each run, so that it would be
        no finding of a seed.
        """
        self.troubles += troubles(log)
        for line in log.splitlines():
            for answer in () if CHANGING in line else answers(line):
                self.findings.note_refusal(answer, f"log of the operator: {line}")

    def metrics(self) -> dict[str, float | None]:
        """The figures of UNITS."""
        found = self.findings
        quiet, beside = p99(self.quiet), p99(self.beside)
        return {
            "jobs": found.jobs,
            "templates": found.templates,
            "dry_runs": found.dry_runs,
            "refused_by_api_server": found.refused,
            "tracebacks": len(self.troubles) + len(found.errors),
            "refusals_without_field": len(found.unnamed),
            "refusals_not_foreseen": len(found.new_refusals()),
            "refusals_known": found.known_kinds(),
            "silent_jobs": len(found.silent),
            "hostile_requests": self.requests,
            "p99_quiet_ms": quiet,
            "p99_beside_ms": beside,
            "p99_ratio": beside / quiet,
            "restart_seconds": max(self.restarts, default=None),
        }

    def problems(self) -> list[str]:
        """What the operator must not do; empty when nothing was found. Without the times."""
        found = self.findings
        ended = [f"the operator ended with {self.exit_code}"] if self.exit_code else []
        silent = [f"a job shows nothing: {spec}" for spec in found.silent]
        unnamed = [f"a refusal without field or value: {message}" for message in found.unnamed]
        new = [f"only the API server refuses this, {text}" for text in found.new_refusals()]
        return [*ended, *self.troubles, *found.errors, *silent, *unnamed, *new]


def p99(samples: Sequence[float]) -> float:
    """The value that 99 % of the samples do not exceed."""
    return sorted(samples)[math.ceil(0.99 * len(samples)) - 1]


def run(api: Api, folder: Path, size: FuzzSize, report: Callable[[str], None]) -> FuzzOutcome:
    """Run the operator, and all waves beside it. Raises TimeoutError when it does not act on an
    ordinary job, and AssertionError when it does not start, or ends by itself.
    """
    operator, outcome = installed_operator(api, folder), FuzzOutcome()
    try:
        operator.start()
        with Api.kept(api.kubeconfig) as one, Api.kept(api.kubeconfig) as other:
            namespace = Namespace.make(one, f"hostile-{size.seed}")
            tenant = HostileTenant(namespace, size, outcome.findings)
            with contextlib.closing(
                QuietJobs(Namespace.make(other, f"quiet-{size.seed}"))
            ) as quiet:
                FuzzCourse(operator, tenant, quiet, size, outcome).take_turns(report)
    except TimeoutError as error:
        end = last_line(operator.log.read_text(errors="replace"))
        assert operator.exit_code() is None, f"the operator has ended ({operator.log}): {end}"
        raise TimeoutError(f"{error} (the operator's log is {operator.log})") from error
    finally:
        outcome.note_end(operator.stop())
        outcome.read_log(operator.log.read_text(errors="replace"))
    DrawnTemplates(api, outcome.findings).judge(size.seed, size.templates)
    return outcome


@dataclass
class FuzzCourse:
    """The parts of a fuzz, and what it has found so far."""

    operator: OperatorProcess
    tenant: HostileTenant
    quiet: QuietJobs
    size: FuzzSize
    outcome: FuzzOutcome

    def take_turns(self, report: Callable[[str], None]) -> None:
        """Run waves until as many jobs are taken as are to be, or the time is over."""
        end, findings = time.monotonic() + self.size.seconds, self.outcome.findings
        for wave in itertools.cycle(WAVES):
            left = self.size.jobs - findings.jobs
            if left <= 0 or time.monotonic() > end:
                return
            try:
                self._run_wave(min(wave, left))
                report(self._shown())
            finally:  # what is left would be work for each later operator
                self.tenant.delete_all()

    def _run_wave(self, wave: int) -> None:
        outcome, tenant = self.outcome, self.tenant
        self.quiet.sample(lambda count: count > 0)  # the operator ends what it was at
        outcome.quiet += self.quiet.sample(lambda count: count >= self.size.samples)
        outcome.beside += self._beside(wave)
        if wave > WAVE:
            outcome.restarts.append(self._restart())
        tenant.await_judgement()
        outcome.requests = tenant.requests / tenant.seconds

    def _beside(self, wave: int) -> list[float]:
        """The samples of quiet jobs while the hostile tenant works."""
        end = time.monotonic() + WAVE_SECONDS * max(1, wave / WAVE)

        def is_enough(count: int) -> bool:
            is_answered = count >= self.size.samples and self.tenant.is_answered()
            return count > 0 and (time.monotonic() > end or is_answered)

        with self.tenant.at_work(wave):
            return self.quiet.sample(is_enough)

    def _restart(self) -> float:
        """Seconds until an operator that starts beside all jobs of a wave has acted."""
        self.outcome.note_end(self.operator.stop())
        begun = time.monotonic()
        self.operator.start()
        self.quiet.sample(lambda count: count > 0)
        return time.monotonic() - begun

    def _shown(self) -> str:
        outcome = self.outcome
        reasons = dict(outcome.findings.reasons.most_common())
        medians = [round(statistics.median(one)) for one in (outcome.quiet, outcome.beside)]
        return f"{shown(outcome.metrics())}, medians {medians}, {reasons}"
