"""Checks what a spec asks for by rendering it, before anything of it exists. Pure.

The operator does so before the first plan for a spec, and the command lines for a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

from pydantic import ValidationError

from regroup_operator.api.pod_types import find_mismatch
from regroup_operator.api.resource import Object
from regroup_operator.api.settings import Settings
from regroup_operator.errors import TemplateError
from regroup_operator.observe.observed import InvalidJob, Job, JobObject
from regroup_operator.render import torchrun_workload, workload
from regroup_operator.render.pods import user_image
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.protocol.ledger import Ledger
from regroup_trainer.protocol.message import quote, shorten
from regroup_trainer.protocol.waiting_reasons import WaitingReason

MOST_DESIRED_BYTES = 120_000
"""Of the Desired, which is one variable of the coordinator's container. Linux ends a program whose
variable has more than 131,072 bytes (MAX_ARG_STRLEN), and the ledger of a later term adds to it.
"""
_ADDRESS = "192.0.2.1"
_TEMPLATE = "spec.template"


def invalid(job: Job, problem: str) -> InvalidJob:
    """The job as one whose spec is wrong."""
    shared = {field.name: getattr(job, field.name) for field in fields(JobObject)}
    return InvalidJob(**shared, problem=Waiting.of(WaitingReason.InvalidSpec, problem))


def find_problem(job: Job, settings: Settings) -> str:
    """The first thing that Kubernetes or the coordinator would refuse: field, value and what to do.
    Empty when there is none.
    """
    try:
        return next(_problems(job, settings), "")
    except TemplateError as error:
        return str(error)


def _problems(job: Job, settings: Settings) -> Iterator[str]:
    yield from _found(_other_python(job, settings))
    given = job.spec.resources.model_dump(by_alias=True, exclude_none=True)
    yield from _found(find_mismatch(given, "ResourceRequirements", "spec.resources"))
    storage = job.spec.checkpoint.storage
    if storage is not None and storage.volume_claim_template is not None:
        where = "spec.checkpoint.storage.volumeClaimTemplate"
        yield from _found(find_mismatch(workload.claim(job), "PersistentVolumeClaim", where))
    yield from _PODS[job.launcher](job, settings)


def _found(problem: str) -> tuple[str, ...]:
    return (problem,) if problem else ()


def _other_python(job: Job, settings: Settings) -> str:
    """Why the installation's image cannot read the code of the job. Images that a job names are
    not known, nor is the image that a job was started with: its ranks say it themselves.
    """
    has, needs = settings.trainer_python, job.python
    is_known = user_image(job.spec) is None and "trainer" not in job.status.images
    if not (is_known and has and needs) or has == needs:
        return ""
    return (
        f"spec.image: is absent, and the installation's image has Python {has}, but the function "
        f"was pickled by Python {needs}: call train() from Python {has}, name an image with Python "
        f"{needs}, or import within the function all that it uses, so that its text is sent"
    )


def _of_regroup(job: Job, settings: Settings) -> Iterator[str]:
    yield from _of_coordinator(job, settings)
    yield from _of_pod(workload.worker_pod(job, settings, (0, 1), _ADDRESS, ()), _TEMPLATE)


def _of_torchrun(job: Job, settings: Settings) -> Iterator[str]:
    yield from _of_pod(torchrun_workload.store_pod(job, settings, 1, ()), "the store's pod")
    worker = torchrun_workload.agent_pod(job, settings, (0, 1), _ADDRESS, ())
    yield from _of_pod(worker, _TEMPLATE)


_PODS = {"regroup": _of_regroup, "torchrun": _of_torchrun}
"""Launcher -> the problems of the pods that it has."""


def _of_coordinator(job: Job, settings: Settings) -> Iterator[str]:
    try:
        wanted = workload.desired(job, Ledger())
    except ValidationError as error:
        yield _explain_desired(error)
        return
    size = len(wanted.to_json(workload.protocol_of(job)).encode())
    if size > MOST_DESIRED_BYTES:
        yield (
            f"spec: the coordinator's configuration has {size} bytes, and at most "
            f"{MOST_DESIRED_BYTES} are possible: put long arguments of the command into a file"
        )
    yield from _of_pod(
        workload.coordinator_pod(job, settings, wanted, 1, ()), "the coordinator's pod"
    )


_FIELDS = {
    "script": f"{_TEMPLATE}.spec.containers[trainer].command",
    "directory": "spec.checkpoint.storage.persistentVolumeClaim.subPath",
    "progress_pattern": "spec.progressPattern",
    "accelerate": f"{_TEMPLATE}.spec.containers[trainer].command",
}
"""Field of Desired -> the field of the spec that it follows from."""


def _explain_desired(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    field, *_ = problem["loc"] or ("",)
    where = _FIELDS.get(str(field), f"spec ({shorten(str(field))})")
    value = problem["input"]
    size = f" ({len(value)} characters: put them into a file)" if isinstance(value, str) else ""
    return f"{where}: {problem['msg']}, got {quote(value)}{size}"


def _of_pod(pod: Object, path: str) -> Iterator[str]:
    yield from _found(find_mismatch(pod, "Pod", path))
    spec = pod["spec"]
    volumes = spec.get("volumes") or ()
    yield from _repeated([volume["name"] for volume in volumes], f"{path}.spec.volumes")
    for volume in volumes:
        kinds = sorted(key for key, value in volume.items() if key != "name" and value is not None)
        if len(kinds) > 1:
            where = f"{path}.spec.volumes[{volume['name']}]"
            yield f"{where}: is {' and '.join(kinds)} at once: keep one, or take another name"
    known = {volume["name"] for volume in volumes}
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    yield from _repeated([c["name"] for c in containers], f"{path}.spec.containers")
    for container in containers:
        yield from _of_container(container, known, f"{path}.spec.containers[{container['name']}]")


def _of_container(container: Object, volumes: set[str], path: str) -> Iterator[str]:
    if not container.get("image"):
        yield f"{path}.image: is missing: name the image of this container"
    mounts = container.get("volumeMounts") or ()
    yield from _repeated([mount["mountPath"] for mount in mounts], f"{path}.volumeMounts")
    for mount in mounts:
        if mount["name"] not in volumes:
            named = quote(mount["name"])
            yield f"{path}.volumeMounts: there is no volume {named}: describe it in spec.volumes"


def _repeated(given: list[str], path: str) -> Iterator[str]:
    twice = next((name for name, count in Counter(given).items() if count > 1), None)
    if twice is not None:
        yield f"{path}: {quote(twice)} is there twice: give each its own"
