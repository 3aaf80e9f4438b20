"""The operator's keys: names, former ones, and the tokens that are derived."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from regroup_operator.errors import KeyMissingError, SettingsError
from regroup_operator.observe.observed import Job
from regroup_operator.render.keyring import Keyring, name_of
from tests.support.rendering import make_valid_job

OLD, NEW = b"0123456789abcdef", b"fedcba9876543210"


def secret(**entries: bytes) -> dict[str, Any]:
    data = {name.replace("_", "-"): base64.b64encode(key).decode() for name, key in entries.items()}
    return {"data": data}


def keys_of(**entries: bytes) -> Keyring:
    return Keyring.read(secret(**entries), "sys/k")


def started_with(name: str | None) -> Job:
    job = make_valid_job()
    return replace(job, status=job.status.model_copy(update={"token_key": name}))


def test_the_token_differs_by_job_and_needs_the_key() -> None:
    job = make_valid_job()
    other = replace(job, uid="other")
    keys = keys_of(key=OLD)
    assert keys.token(job) == keys_of(key=OLD + b"\n").token(job)
    assert len({keys.token(job), keys.token(other), keys_of(key=NEW).token(job)}) == 3


def test_a_token_is_what_earlier_releases_derived() -> None:
    assert keys_of(key=OLD).token(make_valid_job()) == (
        "f4c1eb2b7ce2762a5fc6be5bd2cca2b49b55645b0260cbdfef9d953bd9a00928"
    )


def test_a_job_keeps_the_key_with_which_it_was_started() -> None:
    before, after = keys_of(key=OLD), keys_of(key=NEW, former_2026=OLD)
    assert after.current == name_of(NEW) != before.current
    running = started_with(before.current)
    assert after.token(running) == before.token(running)
    assert after.token(started_with(None)) == after.token(started_with(after.current))
    assert after.token(running) != after.token(started_with(None))


def test_a_key_that_is_no_longer_there_is_named_with_what_to_do() -> None:
    name = name_of(OLD)
    assert keys_of(key=NEW).problem(started_with(None)) == ""
    with pytest.raises(KeyMissingError) as error:
        keys_of(key=NEW).token(started_with(name))
    assert str(error.value) == (
        f"the job was started with key {name}, which is not in Secret sys/k: put it back there, in "
        f"an entry former-{name}, and restart the operator"
    )


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({}, "has no entry 'key'"),
        ({"data": None}, "has no entry 'key'"),
        (secret(key=b"short"), "entry 'key': has 5 bytes: at least 16"),
        (secret(key=OLD, former_a=b""), "entry 'former-a': has 0 bytes"),
        ({"data": {"key": "no base64!"}}, "entry 'key': is not base64"),
    ],
)
def test_a_secret_without_a_key_is_refused(found: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=rf"^Secret sys/k.*{message}"):
        Keyring.read(found, "sys/k")


def test_other_entries_of_a_secret_of_ones_own_are_left_alone() -> None:
    assert list(keys_of(key=OLD, user=b"me").keys) == [name_of(OLD)]
