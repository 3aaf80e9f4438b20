"""`python -m regroup_trainer.agent`, PID 1 of a worker pod: runs `agent.run_worker`."""

from __future__ import annotations

import sys

from regroup_trainer.protocol.extras import OF_TRAINER, require_extra
from regroup_trainer.system.process_signals import end_upon_sigterm


def main() -> int:
    """Run one worker. Returns its exit code."""
    end_upon_sigterm()
    require_extra("trainer", OF_TRAINER, "regroup agent")
    from regroup_trainer.agent.agent import run_worker

    return run_worker()


if __name__ == "__main__":
    sys.exit(main())
