"""A client of the coordinator's HTTP interface."""

from __future__ import annotations

import aiohttp

from regroup_trainer.protocol.desired import Desired, Lost
from regroup_trainer.protocol.job_status import SERIES_PATH, CoordinatorStatus

TIMEOUT_SECONDS = 2.0


class CoordinatorClient:
    """An asynchronous context manager. Its methods raise aiohttp.ClientError or TimeoutError when
    the coordinator cannot be reached.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
        )

    async def __aenter__(self) -> CoordinatorClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def status(self) -> CoordinatorStatus:
        """The newest report on the job."""
        async with self._session.get(f"{self._url}/v1/status", raise_for_status=True) as response:
            return CoordinatorStatus.model_validate_json(await response.read())

    async def series(self) -> bytes:
        """The course of the job, as JSON of Series."""
        async with self._session.get(
            f"{self._url}{SERIES_PATH}", raise_for_status=True
        ) as response:
            return await response.read()

    async def update_desired(self, desired: Desired) -> None:
        """Send what the job should be."""
        body = desired.model_dump_json()
        async with self._session.put(f"{self._url}/v1/desired", data=body, raise_for_status=True):
            pass

    async def lost(self, lost: Lost) -> None:
        """Report members that are known to be gone."""
        body = lost.model_dump_json()
        async with self._session.post(f"{self._url}/v1/lost", data=body, raise_for_status=True):
            pass
