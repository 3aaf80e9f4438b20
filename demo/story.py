"""The events of the demo: a job trains on three nodes, the node of its rank 0 loses power, and the
job completes.
"""

from __future__ import annotations

import json
import time
from typing import Any

from demo.errors import StoryError
from demo.facts import Facts, Losses, NodeLoss, world_sizes_of
from demo.job import Job, manifest
from demo.screen import Screen
from demo.stages.stage import Stage
from demo.volume import Volume, Written
from demo.watch import Watch
from regroup_trainer.protocol.generation import GenerationNumber

WORKERS = 3
STEPS_BEYOND_CHECKPOINT = 10
STEPS_WITH_TWO = 40


def run(stage: Stage, kind: str, namespace: str, reference: Losses, screen: Screen) -> Facts:
    """Run the demo and return the observed facts. Raises StoryError when an event misses its
    deadline.
    """
    described = manifest()
    job = Job.apply(stage, namespace, described)
    screen.title(
        f"Applied {described['metadata']['name']}: {described['spec']['replicas']} workers, "
        "one per node"
    )
    watch = Watch(job, screen)
    with screen.live():
        wait_for_work_at_risk(watch)
        loss = lose_node(watch)
        train_with_two(watch, loss)
        restart_node(watch, loss)
        watch.until("completion", lambda: job.condition("Complete") == "True", 600, every=0.5)
    screen.title("The job is complete")
    return gather(job, kind, loss, reference, screen)


def wait_for_work_at_risk(watch: Watch) -> None:
    """Wait until three ranks train, a checkpoint exists, and committed steps lie beyond it."""

    def at_risk() -> bool:
        written, saved = watch.volume.last_step(), watch.volume.newest_checkpoint()
        if written is None or saved is None or written.world_size != WORKERS:
            return False
        return written.step >= saved + STEPS_BEYOND_CHECKPOINT

    watch.until("the first step", watch.volume.last_step, 300)
    watch.screen.report("Training has started")
    watch.until("a checkpoint and steps beyond it", at_risk, 300)
    watch.screen.report(
        f"Step {watch.volume.newest_checkpoint()} is in a checkpoint, and later steps are committed"
    )


def lose_node(watch: Watch) -> NodeLoss:
    """Cut the power of rank 0's node and wait for the first new committed step."""
    job, screen = watch.job, watch.screen
    victim, coordinator_node = rank_0_and_coordinator(job)
    node = str(victim["node"])
    screen.title(
        f"Cutting the power of {node}, which holds rank 0 "
        f"(the coordinator is on {coordinator_node})"
    )
    before = set(watch.volume.announced())
    cut_at = time.time()
    job.stage.kill(node, job.namespace, str(victim["pod"]))
    last, saved = newest_work(watch.volume)
    detected = watch.at_once("detection", lambda: announced_since(watch.volume, before), 30)
    screen.report(f"Detected after {detected - cut_at:.2f} s", "green")
    first, resumed_from = watch.at_once(
        "the first new step", lambda: new_step(watch.volume, last), 90
    )
    ready = node_is_ready(job, node)
    screen.report(
        f"Kubernetes {'still reports' if ready else 'no longer reports'} {node} as Ready", "green"
    )
    screen.report(
        f"Training continued with {first.world_size} ranks after {first.time - cut_at:.2f} s, "
        f"from step {resumed_from} (the last step before the failure was {last.step})",
        "green",
    )
    return NodeLoss(
        node, coordinator_node, cut_at, last.step, saved, detected, ready, first.time, resumed_from
    )


def newest_work(volume: Volume) -> tuple[Written, int]:
    """The last committed step and the newest checkpoint. Raises StoryError when there is none."""
    last, saved = volume.last_step(), volume.newest_checkpoint()
    if last is None or saved is None:
        raise StoryError(f"{volume.folder} lost its history or its checkpoint")
    return last, saved


def announced_since(volume: Volume, before: set[GenerationNumber]) -> float | None:
    """When the next generation was announced, seconds since the epoch. None before that."""
    return min(
        (at for number, at in volume.announced().items() if number not in before), default=None
    )


def new_step(volume: Volume, last: Written) -> tuple[Written, int] | None:
    """The first observed step of a later generation, and the step from which this generation
    resumed.
    """
    first = volume.first_step_after(last.generation)
    if first is None:
        return None
    resumed_from = volume.resumed_from(first.generation)
    if resumed_from is None:
        raise StoryError(f"generation {first.generation} trained without a lineage record")
    return first, resumed_from


def rank_0_and_coordinator(job: Job) -> tuple[dict[str, Any], str]:
    """The worker of rank 0 and the node of the coordinator. Raises StoryError when they share a
    node.
    """
    worker = next((one for one in job.status().get("workers", ()) if one.get("rank") == 0), None)
    coordinators = job.pods("coordinator")
    if worker is None or len(coordinators) != 1:
        raise StoryError(
            f"the status of {job.name} names no worker for rank 0, "
            f"or the job has {len(coordinators)} coordinators and not 1"
        )
    where = str(coordinators[0]["spec"]["nodeName"])
    if worker["node"] == where:
        raise StoryError(
            f"rank 0 and the coordinator share the node {where}: the demo needs them on two nodes"
        )
    return worker, where


def node_is_ready(job: Job, node: str) -> bool:
    """Whether Kubernetes reports the node as Ready."""
    conditions = job.kubectl.read("node", node)["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def train_with_two(watch: Watch, loss: NodeLoss) -> None:
    """Wait until the job has trained some steps without the node."""
    enough = loss.resumed_from + STEPS_WITH_TWO

    def far_enough() -> bool:
        written = watch.volume.last_step()
        return written is not None and written.world_size == WORKERS - 1 and written.step >= enough

    watch.until(f"step {enough} with two ranks", far_enough, 120)


def restart_node(watch: Watch, loss: NodeLoss) -> None:
    """Start the node again and wait until three ranks train."""
    watch.screen.title(f"Starting {loss.node} again")
    watch.job.stage.start(loss.node)

    def three() -> bool:
        written = watch.volume.last_step()
        return written is not None and written.world_size == WORKERS

    began = time.monotonic()
    watch.until("training with three ranks again", three, 180)
    watch.screen.report(f"Three ranks train again after {time.monotonic() - began:.1f} s", "green")


def gather(job: Job, kind: str, loss: NodeLoss, reference: Losses, screen: Screen) -> Facts:
    """The facts for the checks."""
    volume = job.volume()
    committed = volume.committed()
    return Facts(
        cluster=kind,
        loss_of_node=loss,
        status=job.status(),
        total_steps=job.total_steps,
        world_sizes=world_sizes_of(committed),
        losses=tuple(step.loss for step in committed),
        reference=reference,
        problems=tuple(volume.audit()),
        kubernetes_version=server_version(job),
        wall_seconds=screen.elapsed,
    )


def server_version(job: Job) -> str:
    """The version of the API server."""
    return str(json.loads(job.kubectl("get", "--raw", "/version"))["gitVersion"])
