"""Single actions, where the API server refuses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.coordination import Coordinators
from regroup_operator.controller.executor import Executor
from regroup_operator.decide.plan import EnsureAccess, EnsureToken
from regroup_operator.errors import ClusterError
from regroup_operator.observe.observed import Observed
from tests.support.rendering import SETTINGS, make_valid_job


class Full:
    """The quota of Secrets is used up: it refuses also one that exists."""

    async def create_secret(self, _document: Any) -> None:
        raise ClusterError("POST", "/api/v1/secrets", 403, "exceeded quota", "Forbidden")


async def test_a_token_that_cannot_be_sent_again_stops_nothing_else(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(32))
    settings = SETTINGS.model_copy(update={"key_file": key})
    executor = Executor(cast(Cluster, Full()), cast(Coordinators, None), settings)
    await executor.execute(EnsureToken(), make_valid_job(), Observed())
    with pytest.raises(ClusterError, match="exceeded quota"):
        await executor.execute(EnsureAccess(), make_valid_job(), Observed())
