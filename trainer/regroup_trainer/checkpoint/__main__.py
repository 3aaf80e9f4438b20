"""`python -m regroup_trainer.checkpoint`: runs `commands`, where the trainer's packages are."""

from __future__ import annotations

from regroup_trainer.protocol.extras import OF_CHECKPOINTS, require_extra

if __name__ == "__main__":
    require_extra("trainer", OF_CHECKPOINTS, "regroup checkpoint")
    from regroup_trainer.checkpoint.commands import main

    main(prog_name="regroup checkpoint")
