"""`python -m regroup_trainer.coordinator`: runs `serving.coordinator_process`."""

from __future__ import annotations

import sys

from regroup_trainer.system.process_signals import end_upon_sigterm


def main() -> int:
    """Serve until SIGTERM. Returns the exit code."""
    end_upon_sigterm()
    from regroup_trainer.coordinator.serving import coordinator_process

    return coordinator_process.main()


if __name__ == "__main__":
    sys.exit(main())
