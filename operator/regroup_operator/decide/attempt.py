"""The attempt of a torchrun job, as its pods show it: torchrun itself reports to nobody. Pure.

An attempt is a store and the workers that meet there; its number is the term of the store. The
first worker that ends well ends the attempt: stock torchrun then closes the rendezvous and refuses
workers that come later.
"""

from __future__ import annotations

from dataclasses import dataclass

from regroup_operator.api import torchrun_end
from regroup_operator.api.torchrun_end import AttemptState
from regroup_operator.decide.plan import MESSAGE_LIMIT, JobOutcome
from regroup_operator.observe.observed import Job, Observed, Pod
from regroup_operator.render.torchrun_commands import nnodes
from regroup_trainer.protocol.exit_codes import WAITS_IN_VAIN

STORE_SECONDS = 10.0
"""How long after a failed worker the end of its store may become known: they have other nodes."""


@dataclass(frozen=True)
class Attempt:
    """The pods of one attempt."""

    store: Pod | None
    """The live one."""
    live: tuple[Pod, ...]
    done: tuple[Pod, ...]
    """Workers that ended well."""
    failed: tuple[Pod, ...]
    """Workers that failed and were not replaced."""

    @property
    def running(self) -> tuple[Pod, ...]:
        """Workers that run, one per index."""
        return tuple(pod for pod in self.live if pod.phase in ("Running", "Unknown"))


def read_attempt(observed: Observed, term: int) -> Attempt:
    """The pods of the attempt `term`."""
    workers = [pod for pod in observed.workers if pod.term == term]
    live = tuple(pod for pod in workers if pod.alive)
    ended = [pod for pod in workers if not pod.alive and not pod.terminating]
    done = tuple(pod for pod in ended if pod.phase == "Succeeded")
    followed = {pod.index for pod in (*live, *done)}
    return Attempt(
        store=next((pod for pod in observed.stores if pod.term == term and pod.alive), None),
        live=live,
        done=done,
        failed=tuple(p for p in ended if p.phase == "Failed" and p.index not in followed),
    )


def trains(job: Job, observed: Observed, term: int) -> bool:
    """Whether enough workers of the attempt run; torchrun does not report whether they have met."""
    attempt = read_attempt(observed, term)
    ran = len(attempt.running) + len(attempt.done)
    return bool(attempt.running) and ran >= job.spec.min_replicas


def find_end(job: Job, observed: Observed) -> JobOutcome | None:
    """How the attempt ended, when that ends the job: enough workers ended well, or the program
    failed too often.
    """
    attempt, judged = read_attempt(observed, job.status.coordinator_term), judge(job, observed)
    if (given_up := _gave_up(job, observed)) is not None:
        return given_up
    if judged.outcome == "again":
        return _fails_too_often(job, judged.failure)
    if judged.outcome == "open" or any(
        observed.ended_within(pod, STORE_SECONDS) for pod in attempt.failed
    ):
        return None
    return JobOutcome(True, "Completed", f"workers that ended well: {len(attempt.done)}")


def judge(job: Job, observed: Observed) -> torchrun_end.Judgement:
    """Whether the current attempt goes on, completes the job, or has to be followed by the next."""
    return torchrun_end.judge(_state_of(job, observed))


def _state_of(job: Job, observed: Observed) -> AttemptState:
    """What the pods show of the current attempt."""
    term = job.status.coordinator_term
    attempt = read_attempt(observed, term)
    return AttemptState(
        well=len(attempt.done),
        running=len(attempt.running),
        failures=tuple(pod.exit_message for pod in attempt.failed),
        waits_in_vain=any(
            pod.term == term and pod.phase == "Failed" and pod.exit_code == WAITS_IN_VAIN
            for pod in observed.stores
        ),
        fewest=job.spec.min_replicas,
    )


def _fails_too_often(job: Job, why: str) -> JobOutcome | None:
    limit = job.spec.restart_policy.max_restarts
    if not why or not 0 <= limit <= job.status.restarts.application:
        return None
    text = f"\n(spec.restartPolicy.maxRestarts={limit})"
    shown = torchrun_end.shorten(why, MESSAGE_LIMIT - len(text))
    return JobOutcome(False, "RestartsExhausted", shown + text)


def has_other_bounds(job: Job, observed: Observed) -> bool:
    """Whether live workers were started with other bounds than the spec has now. A pod that does
    not say its bounds does not count: a webhook may have taken its annotation.
    """
    live = read_attempt(observed, job.status.coordinator_term).live
    return any(pod.nnodes not in ("", nnodes(job.spec)) for pod in live)


def _gave_up(job: Job, observed: Observed) -> JobOutcome | None:
    """An agent also spends its restarts on lost peers. Only a job that lost none blames the
    program.
    """
    restarts = job.status.restarts
    if restarts.infrastructure or restarts.preemption:
        return None
    attempt = read_attempt(observed, job.status.coordinator_term)
    failed = attempt.failed
    # A worker that has yet to start may show that it is the matter of another one's node.
    is_judged = job.status.coordinator_term == 1 and not attempt.live
    never_starts = torchrun_end.cannot_start(_state_of(job, observed)) if is_judged else ""
    ends = (pod.exit_message for pod in failed)
    given_up = never_starts or next(filter(torchrun_end.gave_up, ends), "")
    if not given_up:
        return None
    pod = next(pod for pod in failed if pod.exit_message == given_up)
    limit = job.spec.restart_policy.max_restarts
    reason, sentence = torchrun_end.why_it_ended(pod.exit_message, limit)
    text = f"{sentence}: see the log of {pod.name}"
    if why := torchrun_end.failed_rank(_state_of(job, observed)):
        text = f"{torchrun_end.shorten(why, MESSAGE_LIMIT - len(text) - 1)}\n{text}"
    return JobOutcome(False, reason, text)
