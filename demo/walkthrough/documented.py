"""The commands of the walk-through, word for word as the pages have them.

A test compares them with the pages: a user who follows the pages types these.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Documented:
    """A command of a page."""

    page: str
    text: str

    def typed(self, changes: dict[str, str] | None = None) -> str:
        """With the names of this cluster instead of those of the page.

        Raises ValueError for a name that the command does not have.
        """
        text = self.text
        for of_page, own in (changes or {}).items():
            if of_page not in text:
                raise ValueError(f"{self.page}: {of_page!r} is not in {self.text!r}")
            text = text.replace(of_page, own)
        return text


_INSTALL, _UPGRADE = "docs/tasks/install.md", "docs/tasks/upgrade.md"
_MONITORING, _WAITING = "docs/tasks/monitoring.md", "docs/concepts/waiting.md"
_CLUSTER, _COMMANDS = "docs/start/cluster.md", "docs/tasks/command-line.md"
_PYTORCH_JOB, _SCRIPT = "docs/tasks/move-from-pytorchjob.md", "docs/start/your-script.md"

INSTALL = Documented(
    _INSTALL,
    "helm install regroup charts/regroup -n regroup-system --create-namespace --wait "
    "--set-string image.repository=REGISTRY/regroup-operator,image.tag=TAG "
    "--set-string trainer.image.repository=REGISTRY/regroup-trainer,trainer.image.tag=TAG",
)
TEST = Documented(_INSTALL, "helm test regroup -n regroup-system --logs")
ROLLOUT = Documented(_CLUSTER, "kubectl -n regroup-system rollout status deployment regroup")
DOCTOR = Documented(_COMMANDS, "kubectl trainingjob doctor --claim shared --yes")
MONITOR = Documented(
    _MONITORING,
    "helm upgrade regroup charts/regroup -n regroup-system --reset-then-reuse-values "
    "-f monitoring.yaml",
)
TOP = Documented(_CLUSTER, "kubectl trainingjob top")
DESCRIBE = Documented(_WAITING, "kubectl describe trainingjob gpt")
CHECKPOINT = Documented(_COMMANDS, "kubectl trainingjob checkpoint now gpt")
PAGE = Documented("docs/tasks/web-page.md", "kubectl trainingjob ui")
SCALE = Documented("docs/tasks/resize.md", "kubectl trainingjob scale gpt --replicas 4")
TIMELINE = Documented("docs/tasks/resize.md", "kubectl trainingjob timeline gpt")
SUSPEND = Documented("docs/tasks/suspend.md", "kubectl trainingjob suspend gpt")
RESUME = Documented("docs/tasks/suspend.md", "kubectl trainingjob resume gpt")
EXPORT = Documented(
    "docs/tasks/checkpoints.md",
    "kubectl exec POD -- regroup checkpoint export DIRECTORY --out - > model.safetensors",
)
CONVERT = Documented(_PYTORCH_JOB, "regroup convert pytorchjob.yaml > job.yaml")
VALIDATE = Documented(_PYTORCH_JOB, "regroup validate job.yaml")
CODE = Documented(
    _SCRIPT, "kubectl create configmap mine --from-file=train.py --from-file=points.py"
)
APPLY = Documented(_SCRIPT, "kubectl apply -f job.yaml")
UPGRADE = Documented(
    _UPGRADE,
    "helm upgrade regroup charts/regroup -n regroup-system --reset-then-reuse-values "
    "--set-string image.tag=TAG,trainer.image.tag=TAG",
)
LEASE = Documented(_UPGRADE, "kubectl -n regroup-system get lease regroup-operator")
UNINSTALL = Documented(_INSTALL, "helm uninstall regroup -n regroup-system")
