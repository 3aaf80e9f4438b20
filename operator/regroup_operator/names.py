"""Names and labels of the objects of a job, in one place so that what makes an object and what looks for it agree."""

from __future__ import annotations

import hashlib

DOMAIN = "regroup.dev"
JOB = f"{DOMAIN}/job"
ROLE = f"{DOMAIN}/role"
INDEX = f"{DOMAIN}/index"
TERM = f"{DOMAIN}/term"
EXCLUDED_NODES = f"{DOMAIN}/excluded-nodes"
"""Annotation of a worker pod: the nodes that its node affinity excludes, joined by commas."""
NNODES = f"{DOMAIN}/nnodes"
"""Annotation of a worker pod of launcher torchrun: the bounds that its agent was started with."""
COORDINATOR = "coordinator"
STORE = "store"
"""Where the agents of launcher torchrun meet."""
WORKER = "worker"
INJECTOR = "regroup-agent"
"""Init container, and its volume, that bring the agent into a user's own image."""
AGENT_FOLDER = "/regroup/agent"
"""Where that volume is mounted."""
MAIN_CONTAINER = "trainer"
"""The main container of a worker, as in spec.template."""


def short(uid: str) -> str:
    """The first eight characters of a UID."""
    return uid.replace("-", "")[:8]


def labels(job: str, role: str, **more: object) -> dict[str, str]:
    """Labels of a pod of the job."""
    return {JOB: job, ROLE: role, **{f"{DOMAIN}/{key}": str(value) for key, value in more.items()}}


def selector(job: str, role: str | None = None) -> str:
    """Label selector of the job's pods, of one role or of all."""
    return f"{JOB}={job}" + (f",{ROLE}={role}" if role else "")


def worker(job: str, index: int, incarnation: int) -> str:
    """Name of a worker pod: never used twice, so that one stuck Terminating does not block its replacement."""
    return f"{job}-w{index}-{incarnation}"


def coordinator(job: str, term: int) -> str:
    """Name of a coordinator pod."""
    return f"{job}-c{term}"


def store(job: str, term: int) -> str:
    """Name of a store pod."""
    return f"{job}-s{term}"


def leading_role(launcher: str) -> str:
    """Role of the one pod that all workers of a launcher turn to."""
    return STORE if launcher == "torchrun" else COORDINATOR


def service(job: str, launcher: str) -> str:
    """Name of the Service in front of that pod."""
    return f"{job}-{leading_role(launcher)}"


def token(job: str, uid: str) -> str:
    """Name of the Secret with the job's token. It carries the UID: a predecessor's is never taken for ours."""
    return f"{job}-token-{short(uid)}"


def network_policy(job: str) -> str:
    """Name of the NetworkPolicy."""
    return f"{job}-isolated"


def disruption_budget(job: str) -> str:
    """Name of the PodDisruptionBudget."""
    return f"{job}-workers"


def claim(job: str) -> str:
    """Name of the claim made from volumeClaimTemplate."""
    return f"{job}-checkpoints"


def event(job: str, uid: str, reason: str, key: str) -> str:
    """Deterministic name of an Event: telling the same thing twice meets a name that is taken."""
    return f"{job}.{hashlib.sha256(f'{uid}/{reason}/{key}'.encode()).hexdigest()[:16]}"
