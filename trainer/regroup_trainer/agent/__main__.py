"""The process of an agent, PID 1 of a worker pod: `python -m regroup_trainer.agent`.

REGROUP_* variables configure it (`protocol.environment`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.environment import AgentEnvironment, read_token
from regroup_trainer.protocol.exit_codes import WRONG_USAGE
from regroup_trainer.protocol.extras import OF_TRAINER, require_extra
from regroup_trainer.system.last_signals import ignore_signals

log = logging.getLogger("regroup_trainer.agent")


def main() -> int:
    """Run one worker; returns its exit code."""
    require_extra("trainer", OF_TRAINER, "regroup agent")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    try:
        environment = AgentEnvironment.read(dict(os.environ))
        token = read_token(environment.token_file)
    except ConfigurationError as error:
        log.error("the agent cannot start: %s", error)
        return WRONG_USAGE
    return asyncio.run(_run(environment, token))


async def _run(environment: AgentEnvironment, token: str) -> int:
    from regroup_trainer.agent.agent import Agent

    try:
        return await Agent(environment, token).run()
    finally:
        ignore_signals(signal.SIGTERM, signal.SIGCHLD)


if __name__ == "__main__":
    sys.exit(main())
