"""The attempt of a torchrun job, as its pods show it: torchrun itself reports to nobody. Pure.

An attempt is a store and the workers that meet there; its number is the term of the store. The
first worker that ends well ends the attempt: stock torchrun then closes the rendezvous and refuses
workers that come later.
"""

from __future__ import annotations

from dataclasses import dataclass

from regroup_operator.decide.plan import JobOutcome
from regroup_operator.observe.observed import Job, Observed, Pod
from regroup_operator.render.torchrun_commands import GAVE_UP, nnodes


@dataclass(frozen=True)
class Attempt:
    """The pods of one attempt."""

    store: Pod | None
    """The live one."""
    live: tuple[Pod, ...]
    done: tuple[Pod, ...]
    """Workers that ended well."""

    @property
    def running(self) -> tuple[Pod, ...]:
        """Workers that run, one per index."""
        return tuple(pod for pod in self.live if pod.phase in ("Running", "Unknown"))


def read_attempt(observed: Observed, term: int) -> Attempt:
    """The pods of the attempt `term`."""
    workers = [pod for pod in observed.workers if pod.term == term]
    return Attempt(
        store=next((pod for pod in observed.stores if pod.term == term and pod.alive), None),
        live=tuple(pod for pod in workers if pod.alive),
        done=tuple(pod for pod in workers if pod.phase == "Succeeded" and not pod.terminating),
    )


def trains(job: Job, observed: Observed, term: int) -> bool:
    """Whether enough workers of the attempt run; torchrun does not report whether they have met."""
    attempt = read_attempt(observed, term)
    ran = len(attempt.running) + len(attempt.done)
    return bool(attempt.running) and ran >= job.spec.min_replicas


def find_end(job: Job, observed: Observed) -> JobOutcome | None:
    """How the attempt ended, when that ends the job: enough workers ended well, or torchrun gave up
    on the program.
    """
    attempt = read_attempt(observed, job.status.coordinator_term)
    if not attempt.done:
        return _gave_up(job, observed)
    if attempt.running or len(attempt.done) < job.spec.min_replicas:
        return None
    return JobOutcome(True, "Completed", f"workers that ended well: {len(attempt.done)}")


def is_spoilt(job: Job, observed: Observed) -> bool:
    """Whether an attempt can neither train nor complete: too few workers ended well, and none
    runs.
    """
    attempt = read_attempt(observed, job.status.coordinator_term)
    ended = bool(attempt.done) and not attempt.running
    return ended and len(attempt.done) < job.spec.min_replicas


def has_other_bounds(job: Job, observed: Observed) -> bool:
    """Whether live workers were started with other bounds than the spec has now."""
    live = read_attempt(observed, job.status.coordinator_term).live
    return any(pod.nnodes != nnodes(job.spec) for pod in live)


def _gave_up(job: Job, observed: Observed) -> JobOutcome | None:
    """An agent also spends its restarts on lost peers. Only a job that lost none blames the
    program.
    """
    restarts = job.status.restarts
    if restarts.infrastructure or restarts.preemption:
        return None
    failed = (
        pod
        for pod in observed.workers
        if pod.phase == "Failed"
        and pod.term == job.status.coordinator_term
        and not pod.terminating
        and GAVE_UP in pod.exit_message
    )
    pod = next(failed, None)
    if pod is None:
        return None
    budget = f"spec.restartPolicy.maxRestarts={job.spec.restart_policy.max_restarts}"
    text = f"torchrun gave up ({budget}): see the log of {pod.name}"
    return JobOutcome(False, "RestartsExhausted", text)
