"""The agent's process, PID 1 of a worker pod: `python -m regroup_trainer.agent`, configured by REGROUP_* variables."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from pydantic import ValidationError

from regroup_trainer.agent.agent import Agent
from regroup_trainer.environment import AgentEnvironment

EXIT_USAGE = 2

log = logging.getLogger("regroup_trainer.agent")


def main() -> int:
    """Run one worker; returns its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        environment = AgentEnvironment.read(dict(os.environ))
        token = Path(environment.token_file).read_text().strip()
    except (ValidationError, OSError) as error:
        log.error("the agent's REGROUP_* environment is not usable: %s", error)
        return EXIT_USAGE
    return asyncio.run(_run(environment, token))


async def _run(environment: AgentEnvironment, token: str) -> int:
    return await Agent(environment, token).run()


if __name__ == "__main__":
    sys.exit(main())
