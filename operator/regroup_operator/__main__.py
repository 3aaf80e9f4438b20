"""`python -m regroup_operator`: runs `controller.operator_process`, where its packages are."""

from __future__ import annotations

from regroup_trainer.protocol.extras import OF_OPERATOR, require_extra
from regroup_trainer.system.process_signals import end_at_once, end_upon_sigterm


def main() -> int:
    """Run until SIGTERM. Returns the exit code."""
    end_upon_sigterm()
    require_extra("operator", OF_OPERATOR, "regroup-operator")
    from regroup_operator.controller import operator_process

    return operator_process.main()


if __name__ == "__main__":
    end_at_once(main())
