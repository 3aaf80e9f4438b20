"""Brings the agent into a user's own image: an init container copies it there from the operator's image. Pure.

So any image with torch can be recovered, whether it knows of us or not; and its agent is of the same release as the
coordinator. The folder and how it is used are described in `regroup_trainer.agent.start`.
"""

from __future__ import annotations

from typing import Any

from regroup_operator import names
from regroup_operator.pods import container_security, main_of

Object = dict[str, Any]
SOURCE = "/opt/agent/."
"""Where the operator's image has it."""
START = f"{names.AGENT_FOLDER}/code/regroup_trainer/agent/start.py"
_RESOURCES = {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}}


def agent_command(interpreter: str, *, injected: bool) -> list[str]:
    """The command line of an agent."""
    # -P: a file beside the user's script, such as random.py, must not stand in for a module of the agent.
    return [interpreter, *([START] if injected else ["-P", "-m"]), "regroup_trainer.agent"]


def inject(pod: Object, image: str, pull_policy: str) -> None:
    """Add the init container and its folder to a rendered worker; `image` is the operator's."""
    mount = {
        "name": names.INJECTOR,
        "mountPath": names.AGENT_FOLDER,
    }  # writable for both: Python keeps its byte code beside the source
    copier = {
        "name": names.INJECTOR,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": ["cp", "-r", SOURCE, names.AGENT_FOLDER],
        "resources": _RESOURCES,
        "securityContext": container_security(read_only=True),
        "volumeMounts": [mount],
    }
    spec, main = pod["spec"], main_of(pod)
    spec["initContainers"] = [copier, *spec.get("initContainers", [])]
    spec["volumes"] = [*spec["volumes"], {"name": names.INJECTOR, "emptyDir": {}}]
    main["volumeMounts"] = [*main["volumeMounts"], mount]
