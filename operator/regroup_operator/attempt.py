"""The attempt of a torchrun job, as its pods tell it: nobody else can be asked. Pure.

An attempt is a store and the workers that meet there; its number is the term of the store. A worker that ended well has
ended the attempt: stock torchrun closes the rendezvous then, and who comes later is turned away.
"""

from __future__ import annotations

from dataclasses import dataclass

from regroup_operator.observed import Job, Observed, Pod
from regroup_operator.plan import Ending
from regroup_operator.torchrun import nnodes

GAVE_UP = "ChildFailedError"
"""In the last words of an agent whose ranks failed more often than it may start them again."""


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
        """Workers that run, one an index."""
        return tuple(pod for pod in self.live if pod.phase in ("Running", "Unknown"))


def read_attempt(observed: Observed, term: int) -> Attempt:
    """What there is of the attempt `term`."""
    workers = [pod for pod in observed.workers if pod.term == term]
    return Attempt(
        store=next((pod for pod in observed.stores if pod.term == term and pod.alive), None),
        live=tuple(pod for pod in workers if pod.alive),
        done=tuple(pod for pod in workers if pod.phase == "Succeeded" and not pod.terminating),
    )


def trains(job: Job, observed: Observed, term: int) -> bool:
    """Whether enough workers of the attempt run; torchrun tells nobody whether they have met."""
    attempt = read_attempt(observed, term)
    ran = len(attempt.running) + len(attempt.done)
    return job.spec is not None and bool(attempt.running) and ran >= job.spec.min_replicas


def find_end(job: Job, observed: Observed) -> Ending | None:
    """How the attempt ended, when that ends the job: enough workers ended well, or torchrun gave up on the program."""
    attempt = read_attempt(observed, job.status.coordinator_term)
    if job.spec is None or not attempt.done:
        return _gave_up(job, observed)
    if attempt.running or len(attempt.done) < job.spec.min_replicas:
        return None
    return Ending(True, "Completed", f"workers that ended well: {len(attempt.done)}")


def is_spoilt(job: Job, observed: Observed) -> bool:
    """Whether an attempt can neither train nor complete any more: too few ended well and nobody runs."""
    attempt = read_attempt(observed, job.status.coordinator_term)
    ended = bool(attempt.done) and not attempt.running
    return ended and job.spec is not None and len(attempt.done) < job.spec.min_replicas


def has_other_bounds(job: Job, observed: Observed) -> bool:
    """Whether live workers were started with bounds that the spec does not say any more."""
    live = read_attempt(observed, job.status.coordinator_term).live
    return job.spec is not None and any(pod.nnodes != nnodes(job.spec) for pod in live)


def _gave_up(job: Job, observed: Observed) -> Ending | None:
    """An agent spends its restarts on peers' losses too: only without any are they the program's."""
    restarts = job.status.restarts
    if restarts.infrastructure or restarts.preemption or job.spec is None:
        return None
    for pod in observed.workers:
        fresh = pod.phase == "Failed" and pod.term == job.status.coordinator_term and not pod.terminating
        if fresh and GAVE_UP in pod.exit_message:
            budget = f"spec.restartPolicy.maxRestarts={job.spec.restart_policy.max_restarts}"
            return Ending(False, "RestartsExhausted", f"torchrun gave up ({budget}): see the log of {pod.name}")
    return None
