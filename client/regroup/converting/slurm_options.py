"""The options of sbatch and srun (Slurm 25.05): what they are in a TrainingJob, or why nothing is.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regroup.converting.source import Row, left_out
from regroup_operator.api.launcher_flags import Flag, FlagTable, FoundFlag
from regroup_operator.api.replica_groups import GPU

_PLACE = "use nodeSelector, affinity or scheduling of the job"
_QUEUE = "queueing is not supported yet"
_OUTPUT = "what ranks write is in the pod's log"
_MAIL = "use the alerts"
_BINDING = "Kubernetes places containers"
_RESTART = "the job recovers by itself"
_ONE = "a job is one program: give each task its own"
_STEPS = "pods bring their own network"
_TAKEN = {
    "job-name": "metadata.name",
    "nodes": "spec.replicas",
    "ntasks": "spec.nprocPerNode",
    "ntasks-per-node": "spec.nprocPerNode",
    "gpus-per-node": "spec.resources.limits",
    "gpus": "spec.resources.limits",
    "gpus-per-task": "spec.resources.limits",
    "gres": "spec.resources.limits",
    "cpus-per-task": "spec.resources.requests",
    "mem": "spec.resources.limits",
    "mem-per-cpu": "spec.resources.limits",
    "mem-per-gpu": "spec.resources.limits",
    "time": "spec.activeDeadlineSeconds",
    "chdir": "spec.template.spec.containers[trainer].workingDir",
    "container-image": "spec.image",
    "container-workdir": "spec.template.spec.containers[trainer].workingDir",
}
"""Option -> field of the TrainingJob."""
_TYPE = "the type of GPU is left out: use nodeSelector"
_DIFFERS = {
    "gpus-per-node": _TYPE, "gpus": _TYPE, "gpus-per-task": _TYPE, "gres": _TYPE,
    "mem-per-cpu": "times `--cpus-per-task` and tasks; without it left out",
    "mem-per-gpu": "times the GPUs of a node; without these left out",
}  # fmt: skip
"""What becomes of a part of an option that is taken."""
_LEFT = {
    "partition": _PLACE, "constraint": _PLACE, "nodelist": _PLACE, "exclude": _PLACE,
    "exclusive": _PLACE, "switches": _PLACE, "contiguous": _PLACE, "nodefile": _PLACE,
    "ntasks-per-gpu": "set nprocPerNode", "ntasks-per-socket": _BINDING,
    "account": _QUEUE, "qos": _QUEUE, "reservation": _QUEUE, "priority": _QUEUE, "nice": _QUEUE,
    "begin": _QUEUE, "dependency": _QUEUE, "licenses": _QUEUE, "hold": "set suspend",
    "time-min": _QUEUE, "deadline": _QUEUE, "wckey": _QUEUE, "comment": "use an annotation",
    "output": _OUTPUT, "error": _OUTPUT, "open-mode": _OUTPUT, "label": _OUTPUT, "input": _OUTPUT,
    "unbuffered": _OUTPUT, "quiet": _OUTPUT, "verbose": _OUTPUT, "parsable": _OUTPUT,
    "mail-type": _MAIL, "mail-user": _MAIL,
    "requeue": _RESTART, "no-requeue": "set restartPolicy.maxRestarts",
    "signal": "workers get SIGTERM, see checkpoint.onTermination", "kill-on-bad-exit": _RESTART,
    "no-kill": _RESTART, "wait": _RESTART, "wait-all-nodes": _RESTART,
    "cpu-bind": _BINDING, "gpu-bind": _BINDING, "mem-bind": _BINDING, "distribution": _BINDING,
    "hint": _BINDING, "threads-per-core": _BINDING, "sockets-per-node": _BINDING,
    "cores-per-socket": _BINDING, "extra-node-info": _BINDING, "gres-flags": _BINDING,
    "cpus-per-gpu": "set resources.requests", "mincpus": _BINDING, "tmp": "use an emptyDir",
    "overcommit": _BINDING, "oversubscribe": _BINDING, "exact": _BINDING, "overlap": _BINDING,
    "export": "use env of the template", "get-user-env": "use env of the template",
    "mpi": "ranks meet by torch.distributed", "jobid": "a job has one step", "network": _STEPS,
    "het-group": _ONE, "array": _ONE, "multi-prog": _ONE,
    "propagate": _BINDING, "profile": "see the metrics", "acctg-freq": "see the metrics",
    "container-mounts": "use volumes of the template",
    "container-mount-home": "use volumes of the template",
    "no-container-mount-home": "pods mount no home",
    "container-name": "Kubernetes names containers", "container-writable": "pods are writable",
    "container-remap-root": "use securityContext of the template",
    "ignore-pbs": "there are no lines of PBS",
}  # fmt: skip
"""Option -> why nothing is made of it."""
_ALONE = frozenset(
    {
        "contiguous", "hold", "label", "unbuffered", "quiet", "verbose", "parsable", "requeue",
        "no-requeue", "no-kill", "overcommit", "oversubscribe", "exact", "overlap", "multi-prog",
        "container-mount-home", "no-container-mount-home", "container-writable",
        "container-remap-root", "ignore-pbs", "exclusive", "kill-on-bad-exit", "get-user-env",
    }
)  # fmt: skip
"""Options without a value. Of some the value may be given with `=`."""
_OPTIONAL = re.compile(r"--(exclusive|kill-on-bad-exit|get-user-env)=(.*)", re.DOTALL)
SLURM = FlagTable(
    command=("srun",),
    flags={
        **{name: Flag(name) for name in _TAKEN},
        **{name: Flag("left", name not in _ALONE, instead=why) for name, why in _LEFT.items()},
    },
    short={
        "J": "job-name", "N": "nodes", "n": "ntasks", "G": "gpus", "c": "cpus-per-task",
        "t": "time", "D": "chdir", "p": "partition", "C": "constraint", "w": "nodelist",
        "x": "exclude", "A": "account", "q": "qos", "b": "begin", "d": "dependency",
        "L": "licenses", "H": "hold", "o": "output", "e": "error", "i": "input", "l": "label",
        "u": "unbuffered", "Q": "quiet", "v": "verbose", "k": "no-kill", "W": "wait",
        "m": "distribution", "B": "extra-node-info", "O": "overcommit", "s": "oversubscribe",
        "a": "array", "F": "nodefile",
    },
    abbreviates=True,
)  # fmt: skip
ROWS = (
    *(Row(f"--{name}", target, _DIFFERS.get(name, "")) for name, target in _TAKEN.items()),
    *(Row(f"--{name}", "", why) for name, why in _LEFT.items()),
)
_MEMORY = re.compile(r"(\d{1,15})([KMGT]?)B?", re.ASCII | re.IGNORECASE)
_GPUS = re.compile(r"(?:gpu:)?(?:([\w.-]+):)?(\d{1,9})", re.ASCII)
_GRES = re.compile(r"gpu(?::((?!\d+$)[\w.-]+))?(?::(\d{1,9}))?", re.ASCII)
"""Its number is 1 where it is not given."""
_NODES = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
_TIME = re.compile(
    r"(?:(\d{1,5})-(\d{1,5})(?::(\d{1,5}))?(?::(\d{1,5}))?"
    r"|(\d{1,7})(?::(\d{1,7}))?(?::(\d{1,7}))?)",
    re.ASCII,
)


@dataclass(frozen=True)
class Allocation:
    """What the options ask for."""

    nodes: tuple[int, int] | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
    gpus_per_task: int | None = None
    cpus_per_task: int | None = None
    memory: str | None = None
    """Of a node, as a quantity of Kubernetes."""
    memory_per: tuple[str, int, str] | None = None
    """`cpu` or `gpu`, and the amount with its unit for each."""
    seconds: int | None = None
    name: str | None = None
    folder: str | None = None
    image: str | None = None

    @property
    def workers(self) -> int:
        """One for each node."""
        if self.nodes:
            return self.nodes[1]
        per_node = self.tasks_per_node or 1
        return max(1, -(-(self.tasks or 1) // per_node))

    @property
    def ranks(self) -> int | None:
        """Tasks of a node; None where the options do not say it, or not evenly. Beside the number
        of all tasks, `tasks_per_node` is the most of a node.
        """
        if self.tasks is None:
            return self.tasks_per_node
        return None if self.tasks % self.workers else self.tasks // self.workers

    @property
    def variables(self) -> dict[str, str]:
        """What Slurm sets for the script, as far as it is known."""
        known: dict[str, object] = {
            "SLURM_NTASKS": self.tasks or (self.workers * self.ranks if self.ranks else None),
            "SLURM_NTASKS_PER_NODE": self.tasks_per_node,
            "SLURM_CPUS_PER_TASK": self.cpus_per_task,
            "SLURM_GPUS_ON_NODE": self.gpus_of_node,
            "SLURM_GPUS_PER_NODE": self.gpus_per_node,
            "SLURM_JOB_NAME": self.name,
        }
        if self.nodes is None or self.nodes[0] == self.nodes[1]:
            known |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), self.workers)
        return {name: str(value) for name, value in known.items() if value is not None}

    @property
    def gpus_of_node(self) -> int | None:
        """GPUs of each node, so of each worker; None where the script asks for none."""
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        if self.gpus is not None:
            return self.gpus // self.workers
        return self.gpus_per_task * (self.ranks or 1) if self.gpus_per_task else None

    @property
    def resources(self) -> dict[str, dict[str, str | int]]:
        """Limits and requests of a worker."""
        limits: dict[str, str | int] = {}
        if self.gpus_of_node:
            limits[GPU] = self.gpus_of_node
        cpus = self._cpus
        memory = self.memory or self.shared_memory
        if memory:
            limits["memory"] = memory
        found: dict[str, dict[str, str | int]] = {"limits": limits} if limits else {}
        return {**found, "requests": {"cpu": cpus}} if cpus else found

    @property
    def shared_memory(self) -> str | None:
        """Of all CPUs or GPUs of a node together; None where their number is not known."""
        if self.memory_per is None:
            return None
        what, amount, unit = self.memory_per
        times = self._cpus if what == "cpu" else self.gpus_of_node
        return f"{amount * times}{unit}" if times else None

    @property
    def _cpus(self) -> int | None:
        return self.cpus_per_task * (self.ranks or 1) if self.cpus_per_task else None


def read_options(words: list[str], found: dict[str, FoundFlag]) -> tuple[list[str], list[str]]:
    """Read options into `found`, by what they say; returns sentences about what is left out, and
    the words behind the options. Raises FlagError for an unknown option.
    """
    bare = [f"--{m[1]}" if (m := _OPTIONAL.fullmatch(word)) else word for word in words]
    flags, _, rest = SLURM.sift(bare)
    left = []
    for flag in flags:
        kind = SLURM.flags[flag.name].kind
        if kind == "left":
            left.append(left_out(flag.written, SLURM.flags[flag.name].instead))
        else:
            earlier = found.get(kind, flag)
            if earlier.value != flag.value:
                left.append(left_out(earlier.written, "a later one wins"))
            found[kind] = flag
    return left, words[len(words) - len(rest) :]


def allocation(found: Mapping[str, FoundFlag]) -> tuple[Allocation, list[str]]:
    """What options ask for, and sentences about values that are left out."""
    left: list[str] = []
    values: dict[str, Any] = {}
    said_by: dict[str, FoundFlag] = {}
    for kind, flag in found.items():
        field, value = _FIELDS[kind], _value(kind, flag.value)
        if value is None:
            left.append(left_out(flag.written, _REASONS.get(kind, "its value is not known")))
        elif values.setdefault(field, value) != value:
            left.append(left_out(flag.written, f"{said_by[field].written} says another value"))
        else:
            said_by.setdefault(field, flag)
        if kind in _OF_GPUS and (gpus := _gpus(kind, flag.value)) and gpus[1]:
            left.append(left_out(f"type {gpus[1]} of {flag.written}", _SELECT))
    asked = Allocation(**values)
    if asked.memory_per and (why := _why_no_memory(asked)):
        left.append(left_out(said_by["memory_per"].written, why))
    return asked, left


def _why_no_memory(asked: Allocation) -> str:
    """Why nothing is made of memory for each CPU or GPU; empty where something is."""
    if asked.memory:
        return f"--mem says {asked.memory}"
    if asked.shared_memory:
        return ""
    needs = "--cpus-per-task" if asked.memory_per and asked.memory_per[0] == "cpu" else "GPUs"
    return f"the script gives no {needs}: set resources.limits.memory"


_AMOUNT = "give an amount; 0 would be all of a node"
_REASONS = {
    "gres": "only GPUs of one kind are taken over, as gpu:4",
    "mem": _AMOUNT, "mem-per-cpu": _AMOUNT, "mem-per-gpu": _AMOUNT,
}  # fmt: skip
_OF_GPUS = frozenset({"gres", "gpus", "gpus-per-node", "gpus-per-task"})
_SELECT = "use nodeSelector, such as nvidia.com/gpu.product"
_FIELDS = {
    "job-name": "name", "nodes": "nodes", "ntasks": "tasks", "ntasks-per-node": "tasks_per_node",
    "gpus-per-node": "gpus_per_node", "gres": "gpus_per_node", "gpus": "gpus",
    "gpus-per-task": "gpus_per_task", "cpus-per-task": "cpus_per_task", "mem": "memory",
    "mem-per-cpu": "memory_per", "mem-per-gpu": "memory_per", "time": "seconds",
    "chdir": "folder", "container-image": "image", "container-workdir": "folder",
}  # fmt: skip


def _value(kind: str, text: str) -> object:
    """The value of an option; None where it says nothing that can be taken."""
    if kind in ("job-name", "container-image"):
        return text or None
    if kind in ("chdir", "container-workdir"):
        return text if text.startswith("/") else None
    if kind == "nodes":
        found = _NODES.fullmatch(text)
        return (int(found[1]), int(found[2] or found[1])) if found else None
    if kind == "time":
        return _seconds(text)
    if kind.startswith("mem"):
        return _memory(kind, text)
    if kind in _OF_GPUS:
        gpus = _gpus(kind, text)
        return gpus[0] if gpus else None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None


def _gpus(kind: str, text: str) -> tuple[int, str] | None:
    """How many GPUs, and their type where it is given; None for what is no such value."""
    found = (_GRES if kind == "gres" else _GPUS).fullmatch(text)
    return (int(found[2] or 1), found[1] or "") if found else None


def _memory(kind: str, text: str) -> object:
    found = _MEMORY.fullmatch(text)
    if found is None or int(found[1]) == 0:
        return None
    amount, unit = int(found[1]), f"{found[2].upper() or 'M'}i"
    return f"{amount}{unit}" if kind == "mem" else (kind[8:], amount, unit)


def _seconds(text: str) -> int | None:
    """A time of Slurm: minutes, minutes:seconds, hours:minutes:seconds, days-hours:..."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    if found[1]:
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
        return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) or None
    first, second, third = (part and int(part) for part in found.groups()[4:])
    if third is not None:
        return ((int(first) * 60 + int(second)) * 60 + int(third)) or None
    return (int(first) * 60 + int(second or 0)) or None
