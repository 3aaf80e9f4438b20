"""Access to Kubernetes as a user has it: through kubectl and helm."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.errors import DemoError

Json = dict[str, Any]


class CommandError(DemoError):
    """kubectl, helm or another program failed."""


def call(
    command: list[str],
    stdin: str | None = None,
    env: dict[str, str] | None = None,
    timeout: float = 300,
) -> str:
    """Run a program and return its standard output. Raises CommandError with its error output."""
    try:
        done = subprocess.run(
            command,
            input=stdin or "",
            env=env,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandError(
            f"{command[0]} is not installed: install it, or put its folder on PATH"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(
            f"`{' '.join(command)}` did not finish within {timeout:.0f} s"
        ) from error
    if done.returncode:
        message = (done.stderr or done.stdout).strip()[-2000:]
        raise CommandError(
            f"`{' '.join(command)}` failed with exit code {done.returncode}: {message}"
        )
    return done.stdout


@dataclass(frozen=True)
class Kubectl:
    """kubectl and helm for one cluster."""

    programs: Path | None
    """The folder of kubectl and helm. None: the programs on PATH."""
    kubeconfig: Path | None
    """The kubeconfig. None: the caller's current context."""

    def __call__(self, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
        """Run kubectl. Raises CommandError."""
        return call(self.command(*arguments), stdin, self.environment(), timeout)

    def command(self, *arguments: str) -> list[str]:
        """The command line of kubectl, for callers that start it themselves."""
        return [self._program("kubectl"), *arguments]

    def helm(self, *arguments: str) -> str:
        """Run helm. Raises CommandError."""
        return call([self._program("helm"), *arguments], env=self.environment())

    def apply(self, *objects: Json, namespace: str | None = None) -> None:
        where = ("-n", namespace) if namespace else ()
        self(
            "apply",
            *where,
            "-f",
            "-",
            stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}),
        )

    def read(self, *arguments: str) -> Json:
        """`kubectl get ARGUMENTS` as an object."""
        found: Json = json.loads(self("get", *arguments, "-o", "json"))
        return found

    def environment(self) -> dict[str, str]:
        """The environment that points programs at the cluster."""
        return (
            {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
            if self.kubeconfig
            else dict(os.environ)
        )

    def _program(self, name: str) -> str:
        return str(self.programs / name) if self.programs else name
