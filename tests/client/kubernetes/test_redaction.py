"""What a bundle does not take along."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup.kubernetes.redaction import REDACTED, redacted, redacted_text


@pytest.mark.parametrize(
    "text",
    [
        "password=hunter2",
        "DB_PASSWORD: hunter2",
        '"api_key": "hunter2"',
        "Authorization: Bearer hunter2hunter2",
        "curl -H 'bearer hunter2hunter2'",
        "--token=hunter2 train",
        "https://me:hunter2@host/x",
    ],
)
def test_secrets_are_found_by_their_name(text: str) -> None:
    assert "hunter2" not in redacted_text(text)
    assert REDACTED in redacted_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "a1" * 12,
        "ghp_" + "a1" * 12,
        "AKIA" + "A1" * 8,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    ],
)
def test_secrets_are_found_by_their_form(text: str) -> None:
    assert redacted_text(f"login {text} done") == f"login {REDACTED} done"


@pytest.mark.parametrize(
    "text",
    [
        "step 120, loss 3.2, 41000 tokens/s",
        "the coordinator refused the token",
        "pod gpt-w0-1: no heartbeat for 2.0 s",
        "https://registry:5000/x",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert redacted_text(text) == text


def test_values_of_variables_go_and_those_of_the_training_stay() -> None:
    env = [
        {"name": "LOGIN", "value": "hunter2"},
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "REGROUP_TOKEN", "value": "hunter2"},
        {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        "odd",
    ]
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "hunter2", "a": "b"}
    document = {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"env": env, "args": ["--token", "hunter2", "--lr", "1"]}]},
    }
    found = redacted(document)
    assert "hunter2" not in str(found)
    assert found["metadata"]["annotations"] == {"a": "b"}
    (container,) = found["spec"]["containers"]
    assert container["env"][1]["value"] == "INFO"
    assert container["env"][3:] == env[3:]
    assert container["args"] == ["--token", REDACTED, "--lr", "1"]


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda parts: st.lists(parts) | st.dictionaries(st.sampled_from(["env", "a", "value"]), parts),
)


@given(st.dictionaries(st.text(), ANY))
def test_any_object_can_be_bundled(document: dict[str, object]) -> None:
    assert set(redacted(document)) == set(document)
