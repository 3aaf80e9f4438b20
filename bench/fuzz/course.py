"""The course of a fuzz: quiet samples and waves of hostile jobs take turns, so that both kinds of
samples see the same machine. The jobs of a wave stay until its end, and the ordinary tenant is
measured until then: beside the first ones, and beside all of them.

The hostile tenant creates at most one job each `EVERY_SECONDS`, and rests as long as each request
took. Without that the API server has no time left on a small machine, whatever the operator does.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bench.fuzz.hostile_tenant import Findings, HostileTenant
from bench.fuzz.judgement import last_line, names_field_and_value, troubles
from bench.fuzz.quiet_jobs import QuietJobs
from bench.harness import shown
from tests.support.hostile_jobs import draw_ordinary_template, draw_template
from tests.support.kube_api import Api, Namespace
from tests.support.offline_operator import problem_of
from tests.support.operator_process import installed_operator
from tests.support.specs import SMALLEST

EVERY_SECONDS = 0.08
WAVE = 100
"""Hostile jobs that the API server takes between two pauses."""
MOST_BESIDE = 200
"""Samples beside one wave: it takes a minute, or several on a machine that does too much."""
MOST_RATIO = 2.0
UNITS = {
    "jobs": "count",
    "templates": "count",
    "refused_by_api_server": "count",
    "tracebacks": "count",
    "refusals_without_field": "count",
    "silent_jobs": "count",
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
    """Before each wave."""
    seconds: float = math.inf
    """No wave begins later."""


@dataclass
class Outcome:
    """What was found."""

    findings: Findings
    exit_code: int = 0
    """Of the operator, when it is asked to end."""
    troubles: list[str] = field(default_factory=list)
    """Lines of its log, and errors of the templates that are rendered here."""
    quiet: list[float] = field(default_factory=list)
    """Milliseconds from events to actions, without hostile jobs."""
    beside: list[float] = field(default_factory=list)
    """The same beside them."""
    templates: int = 0

    def metrics(self) -> dict[str, float | None]:
        """The figures of UNITS."""
        quiet, beside = p99(self.quiet), p99(self.beside)
        return {
            "jobs": self.findings.jobs,
            "templates": self.templates,
            "refused_by_api_server": self.findings.refused,
            "tracebacks": len(self.troubles),
            "refusals_without_field": len(self.findings.unnamed),
            "silent_jobs": len(self.findings.silent),
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
        return [*ended, *self.troubles, *silent, *unnamed]


def p99(samples: Sequence[float]) -> float:
    """The value that 99 % of the samples do not exceed."""
    return sorted(samples)[math.ceil(0.99 * len(samples)) - 1]


def run(api: Api, folder: Path, size: Size, report: Callable[[str], None]) -> Outcome:
    """Run the operator, and all waves beside it. Raises TimeoutError when it does not act on an
    ordinary job, and AssertionError when it does not start, or ends by itself.
    """
    operator = installed_operator(api, folder)
    operator.start()
    outcome = Outcome(Findings())
    try:
        with Api.kept(api.kubeconfig) as one, Api.kept(api.kubeconfig) as other:
            tenant = HostileTenant(Namespace.make(one, f"hostile-{size.seed}"), size.seed)
            outcome.findings = tenant.findings
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
        outcome.troubles += troubles(operator.log.read_text(errors="replace"))
    _render_templates(outcome, size)
    return outcome


def _take_turns(
    outcome: Outcome,
    tenant: HostileTenant,
    quiet: QuietJobs,
    size: Size,
    report: Callable[[str], None],
) -> None:
    end = time.monotonic() + size.seconds
    while tenant.findings.jobs < size.jobs and time.monotonic() < end:
        wave = min(WAVE, size.jobs - tenant.findings.jobs)
        outcome.quiet += quiet.sample(lambda count: count >= size.samples)
        outcome.beside += _beside(tenant, quiet, wave)
        reasons = dict(tenant.findings.reasons.most_common())
        medians = [round(statistics.median(one)) for one in (outcome.quiet, outcome.beside)]
        report(f"{shown(outcome.metrics())}, medians {medians}, {reasons}")
        tenant.delete_all()


def _beside(tenant: HostileTenant, quiet: QuietJobs, wave: int) -> list[float]:
    """The samples of quiet jobs while a wave is created, and until each of its jobs is judged."""
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        samples = pool.submit(quiet.sample, lambda count: over.is_set() or count >= MOST_BESIDE)
        try:
            tenant.create(wave, EVERY_SECONDS)
            tenant.await_judgement()
        finally:
            over.set()
        return samples.result()


def _render_templates(outcome: Outcome, size: Size) -> None:
    """Draw templates and have them judged as the operator judges them: by the code that reads and
    renders a spec, in this process. A quarter of the jobs take one through the operator, too.
    """
    random = Random(size.seed)
    for _ in range(size.templates):
        draw = random.choice((draw_template, draw_ordinary_template))
        spec = {**SMALLEST, "template": draw(random)}
        outcome.templates += 1
        try:
            problem = problem_of(spec)
        except Exception as error:
            outcome.troubles.append(f"{type(error).__name__}: {error}: {json.dumps(spec)}")
            continue
        if problem and not names_field_and_value(problem):
            outcome.findings.unnamed.append(problem)
