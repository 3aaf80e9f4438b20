"""The extras of our package: what else has to be installed, and for which programs.

`pip install .` in a clone of Regroup brings what checks and plans need. A program that needs more
says so in one sentence, before it imports anything of it. The `regroup` of PyPI is another project.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from regroup_trainer.protocol.exit_codes import WRONG_USAGE

OF_OPERATOR = ("kopf",)
OF_TRAINER = ("numpy", "safetensors", "torch", "xxhash")
OF_CHECKPOINTS = ("xxhash",)
"""Only `export` needs more."""


def missing_extra(extra: str, modules: Sequence[str]) -> str | None:
    """What to type when one of these modules, which the extra brings, is not installed; None when
    all are.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    what = f"type pip install '.[{extra}]' in a clone of Regroup"
    return f"{', '.join(missing)} cannot be found: {what}"


def require_extra(extra: str, modules: Sequence[str], program: str) -> None:
    """Exit with one sentence where one of these modules is not installed."""
    if (missing := missing_extra(extra, modules)) is not None:
        print(f"{program}: {missing}", file=sys.stderr)
        sys.exit(WRONG_USAGE)
