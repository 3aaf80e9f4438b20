"""A job, its pods and its nodes as plain values, with virtual time, for tests of the planner.

`round()` is one reconcile; `crash_after` cuts it short, as the death of an operator does.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from regroup_operator.api import names
from regroup_operator.api.spec_reader import parse_spec
from regroup_operator.api.status import CHECKPOINT_REQUEST, RESTART_REQUEST, TrainingJobStatus
from regroup_operator.api.timestamps import parse_time
from regroup_operator.decide.plan import (
    MESSAGE_LIMIT,
    Action,
    CreateCoordinator,
    CreateStore,
    CreateWorker,
    DeleteJob,
    DeletePod,
    EnsureAccess,
    EnsureDisruptionBudget,
    EnsureService,
    EnsureToken,
    Plan,
    PutDesired,
    SendAddress,
)
from regroup_operator.decide.planner import plan
from regroup_operator.observe.observed import (
    Claim,
    CoordinatorView,
    Identity,
    InvalidJob,
    Job,
    JobObject,
    Node,
    Observed,
    Pod,
    Service,
)
from regroup_operator.render.torchrun_commands import nnodes
from regroup_trainer.protocol.desired import CoordinatorContact
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import (
    CoordinatorStatus,
    JobEvent,
    MemberStatus,
    Outcome,
    RequestAnswer,
    Waiting,
)
from regroup_trainer.protocol.message import PROTOCOL_VERSION
from regroup_trainer.protocol.rank_messages import Progress
from regroup_trainer.protocol.waiting_reasons import WaitingReason

NODES = ("n1", "n2", "n3")
ELSEWHERE = Waiting.of(WaitingReason.CutOffGeneration, "generation 1.2 trains on, cut off")


def make_spec(**fields: Any) -> dict[str, Any]:
    """A valid elastic spec of three workers; `fields` override."""
    return {
        "replicas": 3,
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 4},
        "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "shared"}}},
        "trainer": {"training": {"steps": 500}},
        **fields,
    }


SCRIPT = {"spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}}


def make_torchrun_spec(**fields: Any) -> dict[str, Any]:
    """Three stock workers, two at least."""
    return {
        "launcher": "torchrun",
        "replicas": 3,
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 4},
        "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "shared"}}},
        "template": SCRIPT,
        **fields,
    }


def make_invalid_job(job: Job) -> InvalidJob:
    """The same job after an edit that made its spec invalid."""
    shared = {field.name: getattr(job, field.name) for field in fields(JobObject)}
    problem = Waiting.of(WaitingReason.InvalidSpec, "spec.trainer.x: unknown field")
    return InvalidJob(**shared, problem=problem)


def make_event(sequence: int, reason: str = "Step") -> JobEvent:
    """An event that a coordinator reports now; its message is its number."""
    return JobEvent(
        sequence=sequence, time=time.time(), type="Normal", reason=reason, message=str(sequence)
    )


def make_coordinator_status(**fields: Any) -> CoordinatorStatus:
    """What a coordinator that trains reports."""
    given: dict[str, Any] = {
        "term": 1,
        "sequence": 1,
        "revision": 1,
        "phase": "running",
        "message": "training",
        "generation": GenerationNumber(1, 1),
        "world_size": 3,
        "total_steps": 500,
        **fields,
    }
    return CoordinatorStatus(**given)


@dataclass
class Simulation:
    """One job in a cluster of three nodes."""

    spec: dict[str, Any] = field(default_factory=make_spec)
    generation: int = 1
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)
    pods: dict[str, Pod] = field(default_factory=dict)
    disowned: list[Pod] = field(default_factory=list)
    """Pods from which the job was taken as their owner, until the status has counted them."""
    lost_owners: bool = False
    """Whether there were any."""
    service: Service | None = None
    disruption_budget: int | None = None
    claim: Claim | None = field(default_factory=lambda: Claim("shared"))
    images: dict[str, str] = field(
        default_factory=lambda: {"trainer": "trainer:1", "coordinator": "operator:1"}
    )
    """Of the operator's release."""
    token_key: str = "0a0a0a0a"
    """Of the operator."""
    dead_nodes: set[str] = field(default_factory=set)
    unready_nodes: set[str] = field(default_factory=set)
    """Nodes that Kubernetes has given up."""
    watched: dict[str, bool] = field(default_factory=dict)
    """Suspected node -> whether its lease was seen to move since."""
    unanswered_since: datetime | None = None
    """Since when the operator gets no answer of the coordinator."""
    died: datetime | None = None
    """Since when the coordinator is dead: it does not answer agents either."""
    agents_answer: bool = True
    """Whether the operator reaches agents of living nodes."""
    trusts_agents: bool = True
    outcome: Outcome | None = None
    lost_since: dict[str, datetime] = field(default_factory=dict)
    """UID -> since when the coordinator calls it lost."""
    trains_elsewhere: bool = False
    """Whether the coordinator says that workers train on without it."""
    no_contact_since: dict[str, datetime] = field(default_factory=dict)
    """UID of a worker that runs and is no member -> since when it shows no life."""
    unreached: dict[str, datetime] = field(default_factory=dict)
    """UID of a worker -> since when the coordinator's address cannot be sent to it."""
    addresses_sent: list[str] = field(default_factory=list)
    """Names of the pods that got it."""
    address: str = "198.19.0.1"
    """That the next Service gets."""
    revision: int = 1
    request: str = ""
    """The annotation that asks for a checkpoint."""
    answer: RequestAnswer | None = None
    """What the coordinator says of a request."""
    restart: str = ""
    """The annotation that asks for a restart."""
    restart_answer: RequestAnswer | None = None
    protocol: int = PROTOCOL_VERSION
    """Of the coordinator."""
    deleted: bool = False
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    clock_ahead: float = 0.0
    """Seconds that the operator's clock is ahead of those of API server and nodes."""
    created: list[str] = field(default_factory=list)
    """Names of all pods ever made."""
    tokens_sent: list[datetime] = field(default_factory=list)
    """When the Secret with the token was sent."""
    _uids: Any = field(default_factory=lambda: itertools.count(1))

    # --- the operator -----------------------------------------------------------------------------

    def job(self) -> Job:
        """The object as the operator reads it."""
        return Job(
            namespace="default",
            name="gpt",
            uid="0000aaaa-1111",
            generation=self.generation,
            deleting=False,
            suspend=self.spec.get("suspend", False),
            spec=parse_spec(self.spec),
            status=self.status,
            launcher=self.spec.get("launcher", "regroup"),
            checkpoint_request=self.request,
            restart_request=self.restart,
        )

    def observed(self) -> Observed:
        """What the operator sees."""
        return Observed(
            pods=tuple(self.pods.values()),
            disowned=tuple(self.disowned),
            taken_lately=self.lost_owners,
            service=self.service,
            seen_seconds=self._seen_seconds(),
            own={"Service": Identity("uid-service", "1")} if self.service else {},
            unreached_seconds={
                uid: (self.now - since).total_seconds() for uid, since in self.unreached.items()
            },
            network_policy=True,
            token_sent_seconds=(self.now - self.tokens_sent[-1]).total_seconds()
            if self.tokens_sent
            else None,
            disruption_budget=self.disruption_budget,
            claim=self.claim,
            nodes={name: self._node(name) for name in self._nodes_looked_at()},
            coordinator=self._view(),
            images=self.images,
            token_key=self.token_key,
        )

    def round(self, crash_after: int | None = None) -> Plan:
        """One reconcile. An operator that crashes has written the status and done only so many
        actions.
        """
        what = plan(self.job(), self.observed(), self.operator_time)
        assert_explained(what)
        self.status = what.status
        self.disowned = [p for p in self.disowned if p.uid not in what.status.handled_pods]
        for action in what.actions[:crash_after]:
            self._do(action)
        return what

    @property
    def operator_time(self) -> datetime:
        """What the operator's clock says."""
        return self.now + timedelta(seconds=self.clock_ahead)

    def run_rounds(self, rounds: int = 12) -> None:
        """Let operator, scheduler and kubelets work `rounds` times, two seconds apart."""
        for _ in range(rounds):
            self.round()
            self.run_pods()
            self.tick(2)

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    # --- the cluster ------------------------------------------------------------------------------

    def run_pods(self) -> None:
        """Schedule what can be scheduled, one worker a node; start what is placed; remove what is
        going.
        """
        for pod in list(self.pods.values()):
            if pod.terminating and pod.node not in self.dead_nodes:
                del self.pods[pod.name]
        for pod in list(self.pods.values()):
            if pod.phase != "Pending" or pod.terminating:
                continue
            node = pod.node or self._place(pod)
            if not node or node in self.dead_nodes:
                self.pods[pod.name] = replace(
                    pod, node=node, unschedulable="" if node else "no node fits"
                )
                continue
            self.pods[pod.name] = replace(
                pod,
                node=node,
                phase="Running",
                ip="198.18.0.1",
                ready=True,
                unschedulable="",
                placed=self.now.isoformat(),
            )
        for name in self.watched:
            self.watched[name] = name not in self.dead_nodes

    def kill_node(self, node: str) -> list[Pod]:
        """Its kubelet and its pods are gone; the API server knows nothing of it."""
        self.dead_nodes.add(node)
        victims = [pod for pod in self.workers() if pod.node == node]
        self.lost_since |= {pod.uid: self.now for pod in victims if pod.phase == "Running"}
        if any(pod.node == node for pod in self.pods.values() if pod.role == names.COORDINATOR):
            self.lose_coordinator()
        return victims

    def lose_coordinator(self) -> None:
        """It is dead, and its pod still Running and Ready, since nobody has noticed."""
        self.died = self.unanswered_since = self.now

    def cut_off(self) -> None:
        """The operator reaches neither the coordinator nor agents, which are well."""
        self.unanswered_since, self.agents_answer = self.now, False

    def reconnect(self) -> None:
        """The operator reaches everything again, and the coordinator answers."""
        self.unanswered_since, self.died, self.agents_answer = None, None, True

    def start_node(self, node: str) -> None:
        """It is back, and its old pods are known to be dead."""
        self.dead_nodes.discard(node)
        for pod in list(self.pods.values()):
            if pod.node == node and pod.phase == "Running":
                if pod.terminating:
                    del self.pods[pod.name]
                else:
                    self.fail(pod, exit_code=137)

    def fail(self, pod: Pod, exit_code: int = 1, **fields: Any) -> None:
        """The pod ends."""
        ended = replace(
            pod, phase="Failed", exit_code=exit_code, ended=self.now.isoformat(), **fields
        )
        self.pods[pod.name] = ended

    def take_label(self, pod: Pod) -> None:
        """Somebody makes its labels unreadable."""
        self.pods[pod.name] = replace(pod, role="", index=-1)

    def take_owner(self, pod: Pod) -> None:
        """Somebody takes its owner reference."""
        self.disowned.append(replace(self.pods.pop(pod.name), role=""))
        self.lost_owners = True

    def workers(self) -> list[Pod]:
        """Live worker pods."""
        return [pod for pod in Observed(pods=tuple(self.pods.values())).workers if pod.alive]

    def coordinator(self) -> Pod | None:
        """The coordinator pod in charge. One that is being deleted stays in charge until it is
        gone.
        """
        pods = [pod for pod in self.pods.values() if pod.role == names.COORDINATOR]
        return next((pod for pod in pods if pod.alive or pod.phase == "Running"), None)

    # --- parts ------------------------------------------------------------------------------------

    def _place(self, pod: Pod) -> str:
        if pod.role != names.WORKER:
            return next((n for n in NODES if n not in pod.excluded_nodes), "")
        taken = {
            other.node
            for other in self.pods.values()
            if other.role == names.WORKER and other.phase != "Failed"
        }
        return next((n for n in NODES if n not in taken and n not in pod.excluded_nodes), "")

    def _nodes_looked_at(self) -> set[str]:
        frozen = {
            pod.node for pod in self.pods.values() if pod.terminating or pod.uid in self.lost_since
        }
        leading = {
            pod.node
            for pod in self.pods.values()
            if pod.role == names.COORDINATOR and self.unanswered_since
        }
        looked_at = {
            name
            for name in {*frozen, *leading, *self.unready_nodes, *self.status.suspected_nodes}
            if name
        }
        self.watched = {name: self.watched.get(name, False) for name in looked_at}
        return looked_at

    def _node(self, name: str) -> Node:
        if name in self.unready_nodes:
            return Node(name, ready=False, not_ready_seconds=10)
        return Node(name, lease_renewed=self.watched.get(name, False))

    def _view(self) -> CoordinatorView:
        pod = self.coordinator()
        if pod is None or pod.phase != "Running" or pod.term != self.status.coordinator_term:
            return CoordinatorView()
        running = [
            p
            for p in self.workers()
            if p.phase == "Running"
            and p.node not in self.dead_nodes
            and p.uid not in self.no_contact_since
        ]
        self.lost_since = {uid: t for uid, t in self.lost_since.items() if self._exists(uid)}
        alive = [p for p in running if p.uid not in self.lost_since]
        first = {p.index: p for p in reversed([p for p in self.pods.values() if p in alive])}
        reporting = [p for p in alive if first[p.index] is p]  # a second one of an index waits
        enough = len(reporting) >= 2
        members = [_member(p, rank if enough else None, "") for rank, p in enumerate(reporting)]
        members += [
            _member(p, None, "unresponsive") for p in self.workers() if p.uid in self.lost_since
        ]
        status = make_coordinator_status(
            term=pod.term,
            revision=self.revision,
            phase=self.outcome.result if self.outcome else "running" if enough else "waiting",
            generation=GenerationNumber(pod.term, 1),
            members=tuple(members),
            world_size=len(reporting) if enough else 0,
            progress=_progress(pod.term) if enough else None,
            outcome=self.outcome,
            protocol=self.protocol,
            checkpoint_answer=self.answer,
            restart_answer=self.restart_answer,
            waiting=ELSEWHERE if self.trains_elsewhere else None,
        )
        lost = {uid: (self.now - since).total_seconds() for uid, since in self.lost_since.items()}
        since = {p.uid: self.no_contact_since.get(p.uid, self.now) for p in self.workers()}
        return CoordinatorView(
            status,
            failures=int(self.unanswered_since is not None),
            unanswered_seconds=self._since(self.unanswered_since),
            contacts=self._contacts(pod),
            trusts_agents=self.trusts_agents,
            error="it takes too long",
            answering_seconds=60,
            lost_seconds=lost,
            no_contact_seconds={uid: (self.now - at).total_seconds() for uid, at in since.items()},
        )

    def _seen_seconds(self) -> dict[str, float]:
        times = {pod.uid: pod.ended for pod in self.pods.values() if pod.ended}
        if self.service is not None:
            times["uid-service"] = self.service.created
        return {uid: (self.now - parse_time(time)).total_seconds() for uid, time in times.items()}

    def _since(self, time: datetime | None) -> float:
        return (self.now - time).total_seconds() if time else 0.0

    def _contacts(self, coordinator: Pod) -> dict[str, CoordinatorContact]:
        """What agents report: asked while the coordinator does not answer."""
        if self.unanswered_since is None or not self.agents_answer or not self.trusts_agents:
            return {}
        contact = CoordinatorContact(
            term=coordinator.term, unanswered_seconds=self._since(self.died)
        )
        running = [pod for pod in self.workers() if pod.phase == "Running"]
        return {pod.uid: contact for pod in running if pod.node not in self.dead_nodes}

    def _exists(self, uid: str) -> bool:
        return any(pod.uid == uid for pod in self.pods.values())

    def _take_desired(self) -> None:
        self.revision, job = self.generation, self.job()
        if request := job.open_request(CHECKPOINT_REQUEST):
            self.answer = RequestAnswer(request=request)
        if request := job.open_request(RESTART_REQUEST):
            self.restart_answer = RequestAnswer(request=request)

    def _do(self, action: Action) -> None:
        match action:
            case EnsureAccess() | EnsureToken():
                self.tokens_sent.append(self.now)
            case EnsureService(term):
                former = self.service
                created = former.created if former else self.now.isoformat()
                self.service = Service(term, former.address if former else self.address, created)
            case SendAddress(pods):
                self.addresses_sent += [pod.name for pod in pods]
            case EnsureDisruptionBudget(fewest):
                self.disruption_budget = fewest
            case CreateCoordinator(term, excluded):
                self._create(names.coordinator("gpt", term), names.COORDINATOR, -1, term, excluded)
                self.revision, self.outcome = self.generation, None
                self.reconnect()
            case CreateStore(term, excluded):
                self._create(names.store("gpt", term), names.STORE, -1, term, excluded)
            case CreateWorker(index, incarnation, excluded):
                self._create(
                    names.worker("gpt", index, incarnation),
                    names.WORKER,
                    index,
                    self._attempt(),
                    excluded,
                )
            case DeletePod(pod):
                self._delete(pod, force=action.force)
            case PutDesired():
                self._take_desired()
            case DeleteJob():
                self.deleted = True

    def _create(
        self, name: str, role: str, index: int, term: int, excluded: tuple[str, ...]
    ) -> None:
        assert name not in self.created, f"{name} is made twice"
        self.created.append(name)
        uid = f"uid-{next(self._uids)}"
        pod = Pod(
            name,
            uid,
            role,
            index,
            term,
            "Pending",
            excluded_nodes=tuple(excluded),
            coordinator_address=self.service.address
            if self.service and role == names.WORKER
            else "",
            claims=("shared",),
            image=self.status.images["coordinator" if role == names.COORDINATOR else "trainer"],
        )
        self.pods[name] = replace(
            pod, nnodes=nnodes(parse_spec(self.spec)) if self._attempt() > 0 else ""
        )

    def _attempt(self) -> int:
        """The label of workers of launcher torchrun."""
        return self.status.coordinator_term if self.spec.get("launcher") == "torchrun" else -1

    def _delete(self, pod: Pod, *, force: bool) -> None:
        current = self.pods.get(pod.name)
        if current is None or current.uid != pod.uid:
            return
        if force or not current.node or current.phase in ("Failed", "Succeeded"):
            del self.pods[pod.name]
        else:
            self.pods[pod.name] = replace(current, terminating=True)


def training() -> Simulation:
    """A job that trains with its three workers."""
    simulation = Simulation()
    simulation.run_rounds(4)
    return simulation


def assert_explained(what: Plan) -> None:
    """Asserts that each condition has a message, and that Ready shows the waiting."""
    empty = [condition.type for condition in what.status.conditions if not condition.message]
    assert not empty, f"conditions without a message: {empty}"
    ready = what.status.condition("Ready")
    if ready is not None and what.waiting is not None:
        assert (ready.status, ready.reason, ready.message) == (
            "False",
            what.waiting.reason,
            what.waiting.message[:MESSAGE_LIMIT],
        )
    assert what.status.message or what.status.phase is None


def names_of(simulation: Simulation) -> list[str]:
    """Names of the live worker pods, by index."""
    return [pod.name for pod in simulation.workers()]


def _member(pod: Pod, rank: int | None, lost: str) -> MemberStatus:
    return MemberStatus(
        member=pod.uid, index=pod.index, pod=pod.name, node=pod.node, rank=rank, step=1, lost=lost
    )


def _progress(term: int) -> Progress:
    return Progress(
        generation=GenerationNumber(term, 1),
        rank=0,
        step=10,
        time=1.0,
        tokens=100,
        tokens_per_second=10.0,
    )
