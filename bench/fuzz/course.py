"""The course of a fuzz: quiet samples and waves of hostile jobs take turns, so that both kinds of
samples see the same machine. The ordinary tenant is measured while the hostile one works, until all
jobs of the wave are answered.
"""

from __future__ import annotations

import contextlib
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
from bench.harness import shown
from tests.support.kube_api import Api, Namespace
from tests.support.operator_process import installed_operator

CLIENTS = 4
"""Of the hostile tenant. Each has one request in flight all the time."""
WAVE = 100
"""Drawn jobs that the API server takes between two pauses."""
WAVE_SECONDS = 60.0
"""The hostile tenant rests after so long, though jobs of the wave may have no answer yet."""
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
}


@dataclass(frozen=True)
class Size:
    """How much is drawn and measured."""

    seed: int
    jobs: int
    """That the API server takes."""
    templates: int
    samples: int
    """Before each wave, and beside it at least."""
    clients: int = CLIENTS
    """Of the hostile tenant."""
    seconds: float = math.inf
    """No wave begins later."""


@dataclass
class Outcome:
    """What was found."""

    findings: Findings = field(default_factory=Findings)
    exit_code: int = 0
    """Of the operator, when it is asked to end."""
    troubles: list[str] = field(default_factory=list)
    """Lines of its log."""
    quiet: list[float] = field(default_factory=list)
    """Milliseconds from events to actions, without hostile jobs."""
    beside: list[float] = field(default_factory=list)
    """The same beside them."""
    requests: float = 0.0
    """A second, of the hostile tenant while it worked."""

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


def run(api: Api, folder: Path, size: Size, report: Callable[[str], None]) -> Outcome:
    """Run the operator, and all waves beside it. Raises TimeoutError when it does not act on an
    ordinary job, and AssertionError when it does not start, or ends by itself.
    """
    operator, outcome = installed_operator(api, folder), Outcome()
    try:
        operator.start()
        with Api.kept(api.kubeconfig) as one, Api.kept(api.kubeconfig) as other:
            namespace = Namespace.make(one, f"hostile-{size.seed}")
            tenant = HostileTenant(namespace, size.seed, size.clients, outcome.findings)
            with contextlib.closing(
                QuietJobs(Namespace.make(other, f"quiet-{size.seed}"))
            ) as quiet:
                _take_turns(outcome, tenant, quiet, size, report)
    except TimeoutError as error:
        end = last_line(operator.log.read_text(errors="replace"))
        assert operator.exit_code() is None, f"the operator has ended ({operator.log}): {end}"
        raise TimeoutError(f"{error} (the operator's log is {operator.log})") from error
    finally:
        outcome.exit_code = operator.stop()
        outcome.read_log(operator.log.read_text(errors="replace"))
    DrawnTemplates(api, outcome.findings).judge(size.seed, size.templates)
    return outcome


def _take_turns(
    outcome: Outcome,
    tenant: HostileTenant,
    quiet: QuietJobs,
    size: Size,
    report: Callable[[str], None],
) -> None:
    end, findings = time.monotonic() + size.seconds, outcome.findings
    while findings.jobs < size.jobs and time.monotonic() < end:
        wave = min(WAVE, size.jobs - findings.jobs)
        quiet.sample(lambda count: count > 0)  # not measured: the operator ends what it was at
        outcome.quiet += quiet.sample(lambda count: count >= size.samples)
        outcome.beside += _beside(tenant, quiet, wave, size.samples)
        tenant.await_judgement()
        outcome.requests = tenant.requests / tenant.seconds
        reasons = dict(findings.reasons.most_common())
        medians = [round(statistics.median(one)) for one in (outcome.quiet, outcome.beside)]
        report(f"{shown(outcome.metrics())}, medians {medians}, {reasons}")
        tenant.delete_all()


def _beside(tenant: HostileTenant, quiet: QuietJobs, wave: int, samples: int) -> list[float]:
    """The samples of quiet jobs while the hostile tenant works."""
    end = time.monotonic() + WAVE_SECONDS

    def is_enough(count: int) -> bool:
        is_over = time.monotonic() > end or (count >= samples and tenant.is_answered())
        return count > 0 and is_over

    with tenant.at_work(wave):
        return quiet.sample(is_enough)
