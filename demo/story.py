"""The story itself: a job trains on three nodes, the node of its rank 0 loses power, and the job finishes."""

from __future__ import annotations

import json
import time
from typing import Any

from demo.errors import StoryError
from demo.facts import Facts, Loss, worlds_of
from demo.job import Job, manifest
from demo.reference import Losses
from demo.screen import Screen
from demo.stages.stage import Stage
from demo.volume import Volume, Written
from demo.watch import Watch
from regroup_trainer.contract import GenerationNumber

WORKERS = 3
STEPS_BEYOND_CHECKPOINT = 10
STEPS_WITH_TWO = 40


def tell(stage: Stage, kind: str, namespace: str, reference: Losses, screen: Screen) -> Facts:
    """Play it and return what was seen. Raises StoryError when something does not happen in its time."""
    described = manifest()
    job = Job.apply(stage, namespace, described)
    screen.title(f"Applied {described['metadata']['name']}: {described['spec']['replicas']} workers, one a node")
    watch = Watch(job, screen)
    with screen.live():
        wait_for_work_at_risk(watch)
        loss = lose_node(watch)
        train_with_two(watch, loss)
        bring_back(watch, loss)
        watch.until("completion", lambda: job.condition("Complete") == "True", 600, every=0.5)
    screen.title("The job is complete")
    return gather(job, kind, loss, reference, screen)


def wait_for_work_at_risk(watch: Watch) -> None:
    """Wait until three train, there is a checkpoint, and more steps than are in it."""

    def at_risk() -> bool:
        written, saved = watch.volume.last_step(), watch.volume.newest_checkpoint()
        if written is None or saved is None or written.world != WORKERS:
            return False
        return written.step >= saved + STEPS_BEYOND_CHECKPOINT

    watch.until("the first step", watch.volume.last_step, 300)
    watch.screen.tell("It trains")
    watch.until("a checkpoint and steps beyond it", at_risk, 300)
    watch.screen.tell(f"There is a checkpoint of step {watch.volume.newest_checkpoint()}, and work beyond it")


def lose_node(watch: Watch) -> Loss:
    """Pull the plug of rank 0's node, and watch what follows up to the first newly committed step."""
    job, screen = watch.job, watch.screen
    victim, coordinator_node = rank_0_and_coordinator(job)
    node = str(victim["node"])
    screen.title(f"Pulling the plug of {node}, which holds rank 0 (the coordinator is on {coordinator_node})")
    before = set(watch.volume.announced())
    pulled = time.time()
    job.stage.kill(node, job.namespace, str(victim["pod"]))
    last, saved = newest_work(watch.volume)
    detected = watch.at_once("detection", lambda: announced_since(watch.volume, before), 30)
    screen.tell(f"Detected after {detected - pulled:.2f} s", "green")
    first, resumed_from = watch.at_once("the first new step", lambda: new_step(watch.volume, last), 90)
    ready = node_is_ready(job, node)
    screen.tell(f"Kubernetes {'still calls' if ready else 'no longer calls'} {node} Ready", "green")
    screen.tell(
        f"Training goes on with {first.world} after {first.time - pulled:.2f} s, from step {resumed_from} "
        f"(the last one before was {last.step})",
        "green",
    )
    return Loss(node, coordinator_node, pulled, last.step, saved, detected, ready, first.time, resumed_from)


def newest_work(volume: Volume) -> tuple[Written, int]:
    """The last committed step and the newest checkpoint. Raises StoryError when there is none."""
    last, saved = volume.last_step(), volume.newest_checkpoint()
    if last is None or saved is None:
        raise StoryError(f"{volume.folder} holds no history or no checkpoint any more")
    return last, saved


def announced_since(volume: Volume, before: set[GenerationNumber]) -> float | None:
    """When the next generation was announced; None while it was not."""
    return min((at for number, at in volume.announced().items() if number not in before), default=None)


def new_step(volume: Volume, last: Written) -> tuple[Written, int] | None:
    """The first step seen of a later generation, and the step that this generation began with."""
    first = volume.first_step_after(last.generation)
    if first is None:
        return None
    resumed_from = volume.resumed_from(first.generation)
    if resumed_from is None:
        raise StoryError(f"generation {first.generation} trained without a lineage record")
    return first, resumed_from


def rank_0_and_coordinator(job: Job) -> tuple[dict[str, Any], str]:
    """The worker of rank 0, and the node of the coordinator. Raises StoryError when they share a node."""
    worker = next((one for one in job.status().get("workers", ()) if one.get("rank") == 0), None)
    coordinators = job.pods("coordinator")
    if worker is None or len(coordinators) != 1:
        raise StoryError(f"{job.name} does not tell who has rank 0, or has {len(coordinators)} coordinators")
    where = str(coordinators[0]["spec"]["nodeName"])
    if worker["node"] == where:
        raise StoryError(f"rank 0 shares the node {where} with the coordinator, which was to be avoided")
    return worker, where


def node_is_ready(job: Job, node: str) -> bool:
    """Whether Kubernetes calls the node Ready."""
    conditions = job.kubectl.read("node", node)["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def train_with_two(watch: Watch, loss: Loss) -> None:
    """Watch it train without the node for a while."""
    enough = loss.resumed_from + STEPS_WITH_TWO

    def far_enough() -> bool:
        written = watch.volume.last_step()
        return written is not None and written.world == WORKERS - 1 and written.step >= enough

    watch.until(f"step {enough} with a world of two", far_enough, 120)


def bring_back(watch: Watch, loss: Loss) -> None:
    """Start the node again, and wait for the world of three."""
    watch.screen.title(f"Starting {loss.node} again")
    watch.job.stage.start(loss.node)

    def three() -> bool:
        written = watch.volume.last_step()
        return written is not None and written.world == WORKERS

    began = time.monotonic()
    watch.until("a world of three again", three, 180)
    watch.screen.tell(f"Three train together again, {time.monotonic() - began:.1f} s later", "green")


def gather(job: Job, kind: str, loss: Loss, reference: Losses, screen: Screen) -> Facts:
    """All that the checks need."""
    volume = job.volume()
    committed = volume.committed()
    return Facts(
        cluster=kind,
        loss_of_node=loss,
        status=job.status(),
        total_steps=job.total_steps,
        worlds=worlds_of(committed),
        losses=tuple(step.loss for step in committed),
        reference=reference,
        problems=tuple(volume.audit()),
        kubernetes_version=server_version(job),
        wall_seconds=screen.elapsed,
    )


def server_version(job: Job) -> str:
    """The version of the API server."""
    return str(json.loads(job.kubectl("get", "--raw", "/version"))["gitVersion"])
