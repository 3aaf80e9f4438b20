"""Renders the objects of a job (Secret, Service, NetworkPolicy, claim, coordinator, workers) and
the Desired of its coordinator. Pure. `torchrun_workload` renders the pods of launcher torchrun.

All pods are restricted: non-root, no capabilities, the default seccomp profile, no API credentials.
`AgentEnvironment` and `CoordinatorEnvironment` describe their environment variables.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import replace

from regroup_operator.api import names
from regroup_operator.api.desired_spec import desired_of
from regroup_operator.api.replica_groups import ranks_of_worker, workers_per_group
from regroup_operator.api.resource import Object
from regroup_operator.api.settings import Settings
from regroup_operator.api.status import CHECKPOINT_REQUEST, RESTART_REQUEST
from regroup_operator.api.timestamps import parse_time
from regroup_operator.api.user_script import user_script
from regroup_operator.observe.kubernetes_objects import read_disruption_budget, read_service
from regroup_operator.observe.observed import Job, JobObject, Service
from regroup_operator.render import injection
from regroup_operator.render.coordinator_resources import resources_for
from regroup_operator.render.pods import (
    LAST_LINES,
    LAUNCHER_OBJECTS,
    avoiding,
    container_security,
    directory,
    environment,
    metadata,
    mounts,
    pod_spec,
    ranks_per_worker,
    set_variables,
    user_image,
    worker,
)
from regroup_trainer.protocol.desired import Desired, LastKnown
from regroup_trainer.protocol.environment import (
    AGENT_METRICS_PORT,
    COORDINATOR_PORT,
    DIRECTORY_VARIABLE,
    LOG_FORMAT,
    TOKEN_FILE,
    AgentEnvironment,
    CoordinatorEnvironment,
)
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.ledger import Ledger
from regroup_trainer.protocol.message import PROTOCOL_VERSION

TRAFFIC_POLICY = "internalTrafficPolicy"
"""Of a Service: `Local` would cut off workers on other nodes."""
_TOKEN_KEY = TOKEN_FILE.rsplit("/", 1)[1]
_KEPT_FILE = "/tmp/coordinator.json"
"""In the scratch volume, which lives as long as the pod."""


# --- desired --------------------------------------------------------------------------------------


def desired(job: Job, seed: Ledger) -> Desired:
    """What the coordinator is to achieve. `seed` is the account so far."""
    wanted = desired_of(
        job.spec,
        namespace=job.namespace,
        job=job.name,
        directory=directory(job),
        replica_group_size=workers_per_group(job.spec),
        revision=job.generation,
    )
    changes = {
        "seed": seed,
        "last_known": _last_known(job),
        "checkpoint_request": job.open_request(CHECKPOINT_REQUEST),
        "restart_request": job.open_request(RESTART_REQUEST),
    }
    return wanted.model_copy(update=changes)


def _last_known(job: Job) -> LastKnown | None:
    """Of a generation that trained when its coordinator last answered."""
    status = job.status
    if status.rendezvous_generation is None or status.progress.updated_time is None:
        return None
    return LastKnown(
        step=status.progress.step,
        time=parse_time(status.progress.updated_time).timestamp(),
        world_size=status.world_size,
        generation=_number(status.rendezvous_generation),
    )


def _number(text: str) -> GenerationNumber | None:
    """None for what somebody else has written into the status."""
    try:
        return GenerationNumber.parse(text)
    except ValueError:
        return None


# --- small objects --------------------------------------------------------------------------------


def secret(job: JobObject, token: str) -> Object:
    """The Secret with the job's token."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, names.token(job.name, job.uid)),
        "type": "Opaque",
        "immutable": True,
        "stringData": {_TOKEN_KEY: token},
    }


def service(job: JobObject, term: int, address: str = "") -> Object:
    """The Service in front of the coordinator, or store, of this term. It never selects that of an
    older term. `address` is the cluster IP to have; empty, or no IP: any.
    """
    leading = LAUNCHER_OBJECTS[job.launcher]
    has_address = {"clusterIP": address} if _is_ip(address) else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, names.service(job.name, leading.leading_role)),
        "spec": {
            **has_address,
            TRAFFIC_POLICY: "Cluster",
            "selector": names.labels(job.name, leading.leading_role, term=term),
            "ports": [
                {
                    "name": "status",
                    "port": leading.port,
                    "targetPort": leading.port,
                    "protocol": "TCP",
                }
            ],
        },
    }


def service_of(job: JobObject, document: Object) -> Service | None:
    """The job's Service, as it was read; None where somebody has taken its address (type
    ExternalName, or headless): workers reach it as little as one that is deleted. It is of no term
    where somebody has edited what it leads to. Of its ports only the numbers and the protocol
    count: Kubernetes adds others where it is reached from outside.
    """
    found, spec = read_service(document), document["spec"]
    if not _is_ip(found.address):
        return None
    wanted = service(job, found.term)["spec"]
    same_ports = _ports(spec.get("ports") or ()) == _ports(wanted["ports"])
    everywhere = spec.get(TRAFFIC_POLICY, "Cluster") == wanted[TRAFFIC_POLICY]
    leads = same_ports and everywhere and spec.get("selector") == wanted["selector"]
    return found if leads else replace(found, term=-1)


def _ports(ports: Iterable[Object]) -> list[tuple[object, ...]]:
    return [
        (port.get("port"), port.get("targetPort"), port.get("protocol", "TCP")) for port in ports
    ]


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def network_policy(job: Job, settings: Settings) -> Object:
    """Allows ingress from the job's own pods to all ports, and from operator and scraper to the
    ports of status and metrics where there are any.
    """
    own = {"podSelector": {"matchLabels": {names.JOB: job.name}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, names.network_policy(job.name)),
        "spec": {
            "podSelector": {"matchLabels": {names.JOB: job.name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [own]},
                *([_from_outside(settings)] if LAUNCHER_OBJECTS[job.launcher].has_token else []),
            ],
        },
    }


def _from_outside(settings: Settings) -> Object:
    rule: Object = {
        "ports": [
            {"protocol": "TCP", "port": port} for port in (COORDINATOR_PORT, AGENT_METRICS_PORT)
        ]
    }
    if settings.network_peers:
        rule["from"] = list(settings.network_peers)
    return rule


def claim(job: Job) -> Object:
    """The claim of volumeClaimTemplate. It has no owner, so that it outlives the job
    (retentionPolicy Retain).
    """
    storage = job.spec.checkpoint.storage
    template = storage.volume_claim_template if storage else None
    if template is None:
        raise ValueError("spec.checkpoint.storage.volumeClaimTemplate is absent")
    given = template.metadata.model_dump(by_alias=True, exclude_none=True)
    labels = {**given.get("labels", {}), names.JOB: job.name}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.claim(job.name),
            "namespace": job.namespace,
            "labels": labels,
            "annotations": given.get("annotations", {}),
        },
        "spec": template.spec.model_dump(by_alias=True, exclude_none=True, mode="json"),
    }


def disruption_budget(job: JobObject, fewest: int) -> Object:
    """The object. It holds a number, not a share: only the operator knows how many pods the job
    wants.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(job, names.disruption_budget(job.name)),
        "spec": {
            "minAvailable": fewest,
            "selector": {"matchLabels": names.labels(job.name, names.WORKER)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def protected_workers(job: JobObject, document: Object) -> int | None:
    """How many workers the job's budget protects, as it was read; None where that is edited."""
    wanted = disruption_budget(job, 0)["spec"]["selector"]
    is_about_them = document["spec"].get("selector") == wanted
    return read_disruption_budget(document) if is_about_them else None


# --- pods -----------------------------------------------------------------------------------------


def protocol_of(job: JobObject) -> int:
    """The version of the protocol that the pods of the job speak, fixed at the start."""
    return job.status.protocol_version or PROTOCOL_VERSION


def coordinator_image(job: Job, settings: Settings) -> str:
    """The operator's image when the job was started."""
    return job.status.images.get("coordinator", settings.coordinator_image)


def coordinator_needs(job: Job, settings: Settings) -> Object:
    """ResourceRequirements of the coordinator for the largest that the job may become by itself. An
    old job may have a `maxReplicas` that no installation allows: it costs nothing.
    """
    if not settings.coordinators_grow:
        return settings.coordinator_resources
    workers = min(job.spec.max_replicas + job.spec.spares, settings.max_workers)
    ranks = workers * ranks_of_worker(job.spec)
    return resources_for(settings.coordinator_resources, workers, ranks)


def coordinator_pod(
    job: Job, settings: Settings, wanted: Desired, term: int, excluded: Iterable[str]
) -> Object:
    """The coordinator of a term. The kubelet restarts its container; the pod is never made
    again.
    """
    of = CoordinatorEnvironment.variable
    variables = {
        of("term"): str(term),
        of("desired"): wanted.to_json(protocol_of(job)),
        of("kept_file"): _KEPT_FILE,
        **_tracing(job, settings),
        **_logging(settings),
    }
    probe = {"httpGet": {"path": "/healthz", "port": COORDINATOR_PORT}, "timeoutSeconds": 2}
    container = {
        "name": names.COORDINATOR,
        "image": coordinator_image(job, settings),
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "regroup_trainer.coordinator"],
        "env": environment(variables, {of("node"): "spec.nodeName"}),
        "ports": [{"name": "status", "containerPort": COORDINATOR_PORT}],
        "readinessProbe": {**probe, "periodSeconds": 1},
        "livenessProbe": {
            **probe,
            "periodSeconds": 5,
            "failureThreshold": 6,
            "initialDelaySeconds": 10,
        },
        "resources": coordinator_needs(job, settings),
        "securityContext": container_security(read_only=True),
        "terminationMessagePolicy": LAST_LINES,
        "volumeMounts": mounts(job),
    }
    pod = {
        **pod_spec(job, settings),
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": job.spec.checkpoint.termination_grace_seconds,
        "containers": [container],
    }
    labels = names.labels(job.name, names.COORDINATOR, term=term)
    described = metadata(job, names.coordinator(job.name, term), labels)
    return avoiding(
        {"apiVersion": "v1", "kind": "Pod", "metadata": described, "spec": pod}, excluded
    )


def _tracing(job: Job, settings: Settings) -> dict[str, str]:
    """Where the coordinator sends traces, and what they are known by; empty: it sends none."""
    if not settings.otlp_endpoint:
        return {}
    uid = CoordinatorEnvironment.variable("job_uid")
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": settings.otlp_endpoint, uid: job.uid}


def _logging(settings: Settings) -> dict[str, str]:
    """How the pods of a job write their logs; empty: as they do by themselves."""
    return {} if settings.log_format == "text" else {LOG_FORMAT: settings.log_format}


def worker_pod(
    job: Job, settings: Settings, place: tuple[int, int], address: str, excluded: Iterable[str]
) -> Object:
    """A worker. `place` is its index and incarnation, `address` the Service's IP. Raises
    TemplateError.
    """
    of = AgentEnvironment.variable
    script = user_script(job.spec.template)  # the agent starts it
    variables = {
        of("coordinator_url"): coordinator_url(address),
        of("job"): job.name,
        of("index"): str(place[0]),
        DIRECTORY_VARIABLE: directory(job),
        **_logging(settings),
    }
    fields = {
        of("namespace"): "metadata.namespace",
        of("member"): "metadata.uid",
        of("pod"): "metadata.name",
        of("node"): "spec.nodeName",
        of("address"): "status.podIP",
    }
    injected = user_image(job.spec) is not None
    if injected:
        variables[of("start")] = injection.START
    main = {
        "command": injection.agent_command(
            script.interpreter if script else "python", injected=injected
        ),
        "env": environment(variables, fields),
        "ports": [{"name": "metrics", "containerPort": AGENT_METRICS_PORT}],
        "volumeMounts": mounts(job),
    }
    pod = worker(job, settings, place, main)
    launched = script.variables if script else {}
    set_variables(pod, {**launched, of("ranks"): str(ranks_per_worker(job.spec))})
    if injected:
        injection.inject(pod, coordinator_image(job, settings), settings.image_pull_policy)
    return avoiding(pod, excluded)


def coordinator_url(address: str) -> str:
    """Where a coordinator is at this IP."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{COORDINATOR_PORT}"
