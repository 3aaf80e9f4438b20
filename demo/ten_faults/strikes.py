"""How each of the ten faults is made, and what somebody does about it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from demo.job import Job, manifest
from demo.ten_faults.scene import NAMESPACE, VOLUME, Json, Scene, Struck, claim
from demo.waiting import wait_for

SAMPLE = "gpt-demo"
RANK = 1
"""The rank that hangs or is slow. Rank 0 has the series of the job."""
STEPS = 1_000_000
"""More than the faults leave time for."""
HANG_SECONDS = 120
WRONG_IMAGE = "127.0.0.1:1/team/train:2"
"""A registry that refuses connections, so that the kubelet knows at once."""
QUOTA = "pods-of-team"
STOPPED_SECONDS, RUNNING_SECONDS = 0.15, 0.05
"""A slow rank, in turns. It looks as one on a slow machine does."""
CPU = {"limits": {"cpu": "400m"}, "requests": {"cpu": "100m"}}
"""Of a worker: the machine is also that of the user, who types."""
GONE_SECONDS = 120.0
MOST = 10
"""Learning rate and weight decay: each step multiplies all weights by about a hundred."""


def sample() -> Json:
    """The job of the samples, with more steps, and a deadline for hangs."""
    made = manifest()
    made["spec"]["trainer"]["training"]["steps"] = STEPS
    made["spec"]["resources"] = CPU
    made["spec"]["failureDetection"] = {"progressTimeoutSeconds": HANG_SECONDS}
    return made


# --- faults of the job that trains ----------------------------------------------------------------


def job_of(scene: Scene) -> Job:
    """The sample's job."""
    uid = scene.stage.kubectl.read("trainingjob", SAMPLE, "-n", NAMESPACE)["metadata"]["uid"]
    return Job(scene.stage, NAMESPACE, SAMPLE, uid, STEPS)


def kill_rank(scene: Scene) -> Struck:
    """By the command that users have for it."""
    scene.must(f"kubectl trainingjob simulate-failure {SAMPLE} --rank {RANK} --yes")
    return Struck(names={"rank": str(RANK)})


def cut_power(scene: Scene) -> Struck:
    """Of a node without the coordinator."""
    job = job_of(scene)
    (coordinator,) = job.pods("coordinator")
    nodes = {str(pod["spec"]["nodeName"]) for pod in job.pods("worker")}
    node = min(nodes - {coordinator["spec"]["nodeName"]})
    at = time.monotonic()
    scene.stage.kill(node, NAMESPACE, "")
    return Struck(lambda: scene.stage.start(node), {"node": node}, at)


def fill_volume(scene: Scene) -> Struck:
    """Until not a byte fits."""
    filler = scene.volume_folder() / ".filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return Struck(filler.unlink, at=time.monotonic())


def stop_rank(scene: Scene) -> Struck:
    """It answers nothing, and its agent lives."""
    process = scene.rank_process(job_of(scene), RANK)
    at = time.monotonic()
    os.kill(process, signal.SIGSTOP)
    return Struck(names={"rank": str(RANK)}, at=at)


def slow_rank(scene: Scene) -> Struck:
    """Stop it and let it go on, in turns."""
    process = scene.rank_process(job_of(scene), RANK)
    over = threading.Event()

    def alternate() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(process, signal.SIGSTOP)
                over.wait(STOPPED_SECONDS)
                os.kill(process, signal.SIGCONT)
                over.wait(RUNNING_SECONDS)

    at = time.monotonic()
    threading.Thread(target=alternate, name="slow-rank", daemon=True).start()
    return Struck(over.set, {"rank": str(RANK)}, at)


def delete_claim(scene: Scene) -> Struck:
    """And lose two workers, so that the job needs new pods."""
    scene.must("kubectl delete pvc shared --wait=false")
    lost = [pod["metadata"]["name"] for pod in job_of(scene).pods("worker")][:2]
    for pod in lost:
        scene.must(f"kubectl trainingjob simulate-failure {SAMPLE} --pod {pod} --yes")
    return Struck(lambda: _restore_claim(scene))


def is_released(scene: Scene) -> bool:
    """Whether the claim is gone. A command that failed says nothing of it."""
    code, listed = scene.type_in("kubectl get pvc -o name")
    return code == 0 and "persistentvolumeclaim/shared" not in listed.split()


def _restore_claim(scene: Scene) -> None:
    """The claim goes with the last pod that uses it. Its volume keeps the data, and is free for a
    new claim once it has forgotten the old one.
    """
    scene.must(f"kubectl trainingjob suspend {SAMPLE}")

    wait_for("the end of the claim", lambda: is_released(scene), GONE_SECONDS, every=0.5)
    scene.patch("pv", VOLUME, {"spec": {"claimRef": None}})
    scene.stage.kubectl.apply(claim(), namespace=NAMESPACE)
    scene.must(f"kubectl trainingjob resume {SAMPLE}")


# --- jobs that are wrong from the beginning -------------------------------------------------------


def single(name: str, **changes: Json | str) -> Json:
    """The sample's job under another name and with one worker, beside the sample's."""
    made = manifest(name)
    del made["spec"]["elasticPolicy"], made["spec"]["template"]
    made["spec"] |= {"replicas": 1, "resources": CPU, **changes}
    made["spec"]["trainer"]["training"]["steps"] = STEPS
    return made


def _create(scene: Scene, made: Json) -> None:
    scene.stage.kubectl.apply(made, namespace=NAMESPACE)


def _change(scene: Scene, name: str, fields: Json) -> None:
    """Change fields of spec that only change while the job is suspended."""
    scene.must(f"kubectl trainingjob suspend {name}")
    waits = f"--for=condition=Suspended --timeout={GONE_SECONDS:.0f}s"
    scene.must(f"kubectl wait trainingjob {name} {waits}")
    scene.patch("trainingjob", name, {"spec": fields})
    scene.must(f"kubectl trainingjob resume {name}")


def wrong_image(scene: Scene) -> Struck:
    """Of a registry that cannot be reached either."""
    _create(scene, single("gpt-image", image=WRONG_IMAGE))
    return Struck(lambda: _change(scene, "gpt-image", {"image": None}))


def large_request(scene: Scene) -> Struck:
    """More than any node has."""
    _create(scene, single("gpt-size", resources={"requests": {"cpu": "64"}}))
    less = {"resources": CPU}
    return Struck(lambda: _change(scene, "gpt-size", less))


def overflow(scene: Scene) -> Struck:
    """Its weights leave what a float can hold."""
    made = single("gpt-nan")
    made["spec"]["trainer"]["optimizer"] = {
        "learningRate": MOST,
        "weightDecay": MOST,
        "warmupSteps": 0,
    }
    _create(scene, made)
    return Struck()


def quota_used_up(scene: Scene) -> Struck:
    """The quota allows as many pods as there are."""
    pods = len(scene.stage.kubectl.read("pods", "-n", NAMESPACE)["items"])
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA}}
    scene.stage.kubectl.apply({**quota, "spec": {"hard": {"pods": pods}}}, namespace=NAMESPACE)
    used = "-o jsonpath={.status.used.pods}"
    wait_for(
        "the count of the quota",
        lambda: scene.type_in(f"kubectl get resourcequota {QUOTA} {used}")[1] == str(pods),
        GONE_SECONDS,
    )
    at = time.monotonic()
    _create(scene, single("gpt-quota"))
    more = {"spec": {"hard": {"pods": pods + 10}}}
    return Struck(lambda: scene.patch("resourcequota", QUOTA, more), at=at)
