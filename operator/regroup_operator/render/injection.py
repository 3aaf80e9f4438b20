"""Adds the agent to a user's image: an init container copies it from the operator's image. Pure.

Any image with torch can therefore be recovered, and its agent is of the same release as the
coordinator. `regroup_trainer.agent.start` describes the folder and how it is used.
"""

from __future__ import annotations

from regroup_operator.api import names
from regroup_operator.api.resource import Object
from regroup_operator.render.pods import LAST_LINES, container_security, main_of

SOURCE = "/opt/agent/."
"""Folder of the agent in the operator's image."""
START = f"{names.AGENT_FOLDER}/code/regroup_trainer/agent/start.py"
_RESOURCES = {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}}


def agent_command(interpreter: str, *, injected: bool) -> list[str]:
    """What follows the image: the interpreter, and our agent from the image or from the folder of
    the init container (`injected`).
    """
    # -P: a file beside the user's script, such as random.py, must not replace a module of the
    # agent.
    return [interpreter, *([START] if injected else ["-P", "-m"]), "regroup_trainer.agent"]


def inject(pod: Object, image: str, pull_policy: str) -> None:
    """Add the init container and its folder to a rendered worker. `image` is the operator's."""
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
        "terminationMessagePolicy": LAST_LINES,
        "volumeMounts": [mount],
    }
    spec, main = pod["spec"], main_of(pod)
    spec["initContainers"] = [copier, *spec.get("initContainers", [])]
    spec["volumes"] = [*spec["volumes"], {"name": names.INJECTOR, "emptyDir": {}}]
    main["volumeMounts"] = [*main["volumeMounts"], mount]
