"""Which cluster and namespace the flags choose, and sentences for a kubeconfig that is no use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.kubeconfig import Target


def config_file(folder: Path, **user: Any) -> Path:
    file = folder / "config"
    contexts = [
        {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        {"name": "two", "context": {"cluster": "c", "user": "u"}},
    ]
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [
            {"name": "c", "cluster": {"server": "https://192.0.2.1", "proxy-url": "http://p:1"}}
        ],
        "users": [{"name": "u", "user": user}],
        "contexts": contexts,
    }
    file.write_text(yaml.safe_dump(content))
    return file


def test_the_namespace_is_that_of_the_flag_of_the_context_or_default(tmp_path: Path) -> None:
    file = str(config_file(tmp_path))
    assert Target(file).current_namespace() == "team"
    assert Target(file, "two").current_namespace() == "default"
    assert Target(file, namespace="mine").current_namespace() == "mine"


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(config_file(tmp_path, token="t")))
    assert Target().current_namespace() == "team"
    settings = Target().connect().configuration
    assert settings.host == "https://192.0.2.1"
    assert settings.proxy == "http://p:1"


def test_credentials_may_come_from_a_program(tmp_path: Path) -> None:
    output = (
        '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", '
        '"status": {"token": "secret"}}'
    )
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print({output!r})"],
        "interactiveMode": "Never",
    }
    api = Target(str(config_file(tmp_path, exec=program))).connect()
    assert api.configuration.api_key["BearerToken"].endswith("secret")


@pytest.mark.parametrize("command", ["/nowhere/login", "false"])
def test_a_program_that_gives_no_credentials_is_named(tmp_path: Path, command: str) -> None:
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": command}
    with pytest.raises(ClusterError, match="no credentials: its login program failed: "):
        Target(str(config_file(tmp_path, exec=program))).connect()


def test_a_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"context three: .*three.*: give a file"):
        Target(str(config_file(tmp_path)), "three").connect()


@pytest.mark.parametrize("content", ["", "- no\n", "{", "apiVersion: v1\n"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    with pytest.raises(ClusterError, match=rf"kubeconfig {file}: "):
        Target(str(file)).connect()
    assert Target(str(file)).current_namespace() == "default"


def test_no_kubeconfig_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        ClusterError, match=rf"kubeconfig {tmp_path}/.kube/config: does not exist: "
    ):
        Target().connect()
