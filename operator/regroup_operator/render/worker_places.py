"""Makes the worker of one place out of that of another, which was rendered. Pure.

A job may make thousands of workers, and rendering one takes up to 30 ms: a spec may have 10,000
values.
"""

from __future__ import annotations

from regroup_operator.api import names
from regroup_operator.api.resource import Object
from regroup_trainer.protocol.environment import AgentEnvironment

_INDEX = AgentEnvironment.variable("index")


def at_place(worker: Object, job: str, place: tuple[int, int]) -> Object:
    """The worker pod of this index and incarnation; all else is as in `worker`, of the same job,
    with which it shares its parts. No template sets the variable with the index: it is reserved.
    """
    index, incarnation = place
    described, spec = worker["metadata"], worker["spec"]
    labels = {**described["labels"], names.INDEX: str(index)}
    containers = [
        _with_index(each, index) if each["name"] == names.MAIN_CONTAINER else each
        for each in spec["containers"]
    ]
    return {
        **worker,
        "metadata": {**described, "name": names.worker(job, index, incarnation), "labels": labels},
        "spec": {**spec, "containers": containers},
    }


def _with_index(container: Object, index: int) -> Object:
    """Of launcher torchrun, no variable holds it."""
    env = [
        {**variable, "value": str(index)} if variable["name"] == _INDEX else variable
        for variable in container["env"]
    ]
    return {**container, "env": env}
