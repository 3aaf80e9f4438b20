"""How long do the command line and the Python client take, beside those of Kubernetes?

    make bench NAME=command_line [ARGS=--quick]

- `help`: `kubectl-trainingjob --help`, beside `kubectl --help`. The goal of 0.3 s is for a quiet
  machine; ratios say more on one that is busy. Verbs import late what the help does not need:
  tests/client/cli/test_kubectl_trainingjob.py counts the modules.
- `import`: an interpreter that imports the Python client, beside one that imports `kubernetes`.
- `debug of 128`: `kubectl-trainingjob debug` of a job of 128 pods, at a real API server. A played
  kubelet answers for each pod, two seconds after it was asked. Nothing like it is beside it.

Each run of the first two starts both programs in turn, and a bare Python: no program of ours can
take less.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Goal, Plan, Values, command
from devcluster import binaries
from devcluster.apiserver import ApiServer
from regroup_trainer.protocol.agent_messages import RankStack, WorkerStacks
from tests.support.cluster_objects import pod_object, running_status
from tests.support.kube_api import Api, Namespace, install_definition
from tests.support.played_kubelet import SUCCESS, Played, played_node
from tests.support.specs import SMALLEST

PYTHON = (sys.executable, "-c")
OURS = str(Path(sys.executable).with_name("kubectl-trainingjob"))
HELP, IMPORT, DEBUG = "help", "import", "debug of "
PROGRAMS = {
    HELP: ((OURS, "--help"), ("kubectl", "--help")),
    IMPORT: (
        (*PYTHON, "from regroup import TrainingClient, TrainingJob"),
        (*PYTHON, "import kubernetes"),
    ),
}
"""Case -> ours, and what it is beside."""
BARE = (*PYTHON, "pass")
PODS, QUICK_PODS = 128, 8
NAMESPACE, NODE = "bench", "played"
ANSWER_SECONDS = 2.0
"""Until a pod answers: its Python starts, and its ranks are asked."""
STACK = 'Thread 0x1 (most recent call first):\n  File "x.py", line 7 in reduce\n'
GOALS = {HELP: Goal(0.3), f"{DEBUG}{PODS}": Goal(10.0)}
UNITS = {"seconds": "s", "beside_seconds": "s", "ratio": "x beside", "python_seconds": "s"}


def plan(quick: bool) -> Plan:
    """Ten runs; a quick one has one, and fewer pods."""
    return Plan(
        "command_line",
        (HELP, IMPORT, f"{DEBUG}{QUICK_PODS if quick else PODS}"),
        ("regroup",),
        UNITS,
        1 if quick else 10,
        settings=lambda case, _subject: settings(case),
        goals=lambda case, _subject: {"seconds": GOALS[case]} if case in GOALS else {},
    )


def settings(case: str) -> str:
    """What a case compares."""
    if case.startswith(DEBUG):
        return f"{case}: each pod answers {ANSWER_SECONDS:g} s after it was asked"
    ours, other = (" ".join([Path(words[0]).name, *words[1:]]) for words in PROGRAMS[case])
    return f"{case}: {ours}, beside {other}"


def measure(case: str, _subject: str) -> Values:
    """One run."""
    if case.startswith(DEBUG):
        return {"seconds": debug_seconds(int(case.removeprefix(DEBUG)))}
    ours, other = (seconds_of(words) for words in PROGRAMS[case])
    bare = seconds_of(BARE)
    return {
        "seconds": ours,
        "beside_seconds": other,
        "ratio": ours / other,
        "python_seconds": bare,
    }


def seconds_of(words: Sequence[str]) -> float:
    """From the start of a program to its end. Raises CalledProcessError."""
    program, *arguments = words
    if program == "kubectl":
        program = str(binaries.build(lambda *_: None) / program)
    begun = time.monotonic()
    subprocess.run([program, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


# --- debug ----------------------------------------------------------------------------------------


def debug_seconds(pods: int) -> float | None:
    """Of `debug` of a job of so many pods; None where it does not show the stacks of all."""
    with job_of(pods) as kubeconfig:
        where = ("--kubeconfig", str(kubeconfig), "-n", NAMESPACE)
        begun = time.monotonic()
        done = subprocess.run(
            [OURS, *where, "debug", "gpt"], check=True, capture_output=True, text=True
        )
        seconds = time.monotonic() - begun
    return seconds if shows_all(done.stdout, pods) else None


def shows_all(text: str, pods: int) -> bool:
    """Whether `debug` has folded the stacks of so many pods into one."""
    return text.startswith(f"gpt: {pods} ranks answered, all with the same stack\n")


@contextmanager
def job_of(pods: int) -> Iterator[Path]:
    """Inside, an API server has a job of so many pods, which answer; its kubeconfig."""
    with ApiServer() as server, played_node(server, NODE, answer):
        api = Api(server.kubeconfig)
        install_definition(api)
        team = Namespace.make(api, NAMESPACE)
        team.create(SMALLEST)
        team.write_status(running_status())
        for number in range(pods):
            make_pod(team, f"gpt-w{number}-1")
        yield server.kubeconfig


def make_pod(team: Namespace, name: str) -> None:
    """A worker that runs on the played node."""
    pod = pod_object(name, node=NODE)
    pod["spec"]["containers"][0]["image"] = "trainer:1"
    made = team.api.request("POST", team.core("pods"), pod)
    status = {**made.body, "status": pod["status"]}
    team.api.request("PUT", team.core(f"pods/{name}/status"), status)


def answer(pod: str, _words: Sequence[str]) -> Played:
    """The stack of the only rank of a pod, after a while."""
    time.sleep(ANSWER_SECONDS)
    rank = RankStack(rank=int(pod.split("-")[1].removeprefix("w")), text=STACK)
    return WorkerStacks(ranks=(rank,)).model_dump_json(), "", SUCCESS


main = command(plan, measure)

if __name__ == "__main__":
    main()
