"""The operator's key: read, made once, or explained."""

from __future__ import annotations

from typing import Any

import pytest

from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.operator_key import read_or_make_keys
from regroup_operator.errors import ClusterError, SettingsError
from regroup_operator.render.keyring import LEAST_BYTES

PLACE = "sys/regroup-key"


class Secrets(Cluster):
    """The Secrets of an API server. Another operator may be faster."""

    def __init__(self, faster: dict[str, Any] | None = None, refusal: int | None = None) -> None:
        self.found: dict[str, Any] | None = None
        self._faster = faster
        self._refusal = refusal

    async def secret(self, namespace: str, name: str) -> dict[str, Any] | None:
        assert (namespace, name) == ("sys", "regroup-key")
        return self.found

    async def create_secret(self, document: dict[str, Any]) -> None:
        if self._refusal is not None:
            raise ClusterError("POST", "/secrets", self._refusal, "no")
        self.found = self._faster or document


async def test_a_key_is_made_where_there_is_none_and_read_from_then_on() -> None:
    server = Secrets()
    made = await read_or_make_keys(server, PLACE)
    assert len(made.keys[made.current]) >= 2 * LEAST_BYTES
    assert await read_or_make_keys(server, PLACE) == made
    assert await read_or_make_keys(Secrets(), PLACE) != made


async def test_the_key_of_an_operator_that_was_faster_is_taken() -> None:
    other = Secrets()
    made = await read_or_make_keys(other, PLACE)
    assert await read_or_make_keys(Secrets(faster=other.found), PLACE) == made


@pytest.mark.parametrize("status", [403, 404])
async def test_a_refusal_says_what_to_make(status: int) -> None:
    with pytest.raises(SettingsError, match=r"^Secret sys/regroup-key .*: make it, with at least"):
        await read_or_make_keys(Secrets(refusal=status), PLACE)


@pytest.mark.parametrize("status", [0, 429, 500, 503])
async def test_an_api_server_that_is_away_is_no_wrong_setting(status: int) -> None:
    with pytest.raises(ClusterError):
        await read_or_make_keys(Secrets(refusal=status), PLACE)
