"""Names and labels of the objects of a job, for the code that makes them and the code that finds
them.
"""

from __future__ import annotations

import hashlib
import re

DOMAIN = "regroup.dev"
JOB = f"{DOMAIN}/job"
ROLE = f"{DOMAIN}/role"
INDEX = f"{DOMAIN}/index"
TERM = f"{DOMAIN}/term"
EXCLUDED_NODES = f"{DOMAIN}/excluded-nodes"
"""Annotation of a worker pod: the nodes that its node affinity excludes, joined by commas."""
NNODES = f"{DOMAIN}/nnodes"
"""Annotation of a worker pod of launcher torchrun: the bounds that its agent was started with."""
CHECKPOINT_NOW = f"{DOMAIN}/checkpoint-now"
"""Annotation of a TrainingJob: each new value asks for one checkpoint."""
RESTART = f"{DOMAIN}/restart-from-checkpoint"
"""The same for a restart: VALUE, or VALUE@STEP for the checkpoint of a step."""
PYTHON = f"{DOMAIN}/python"
"""Annotation of a TrainingJob: the minor version of Python, as 3.12, that its code needs."""
MINOR_VERSION = re.compile(r"3\.[0-9]{1,2}")
STATUS_REFUSED = "StatusRefused"
"""The reason of an event about a TrainingJob whose status the API server refuses."""
CRASH_LOOP = "CrashLoopBackOff"
"""Why a container waits that has ended again and again, as the kubelet says."""
COORDINATOR = "coordinator"
STORE = "store"
"""Where the agents of launcher torchrun meet."""
WORKER = "worker"
INJECTOR = "regroup-agent"
"""Name of the init container, and its volume, that copy the agent into a user's image."""
AGENT_FOLDER = "/regroup/agent"
"""Where that volume is mounted."""
MAIN_CONTAINER = "trainer"
"""The main container of a worker, as in spec.template."""


OBJECT_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_OBJECT_NAME = re.compile(OBJECT_NAME)
_OBJECT_NAME_LIMIT = 253


def is_object_name(name: str) -> bool:
    """Whether an object of Kubernetes may have this name (DNS subdomain). Only such a name is one
    segment of a path, whatever decodes it.
    """
    return len(name) <= _OBJECT_NAME_LIMIT and _OBJECT_NAME.fullmatch(name) is not None


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
    """Name of a worker pod. It is never used twice, so that a pod that is stuck Terminating does
    not block its replacement.
    """
    return f"{job}-w{index}-{incarnation}"


_POD_NAME = re.compile(r"(.+)-(?:w[0-9]+-[0-9]+|[cs][0-9]+)")


def job_of_pod(name: str) -> str:
    """The job whose pod would have this name; empty where that of none would."""
    found = _POD_NAME.fullmatch(name)
    return found[1] if found else ""


def coordinator(job: str, term: int) -> str:
    """Name of a coordinator pod."""
    return f"{job}-c{term}"


def store(job: str, term: int) -> str:
    """Name of a store pod."""
    return f"{job}-s{term}"


def service(job: str, leading_role: str) -> str:
    """Name of the Service in front of the pod that all workers connect to."""
    return f"{job}-{leading_role}"


def token(job: str, uid: str) -> str:
    """Name of the Secret with the job's token. It contains the UID, so that the Secret of an
    earlier job of this name is not used.
    """
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
    """Name of an Event. The same event always has the same name, so that it exists once."""
    return f"{job}.{hashlib.sha256(f'{uid}/{reason}/{key}'.encode()).hexdigest()[:16]}"
