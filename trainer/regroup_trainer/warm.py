"""Imports all that a rank needs up to its first step, so that a rank forked from here starts at once.

Half of a process start is imports, several of which torch makes lazily. Nothing here starts a thread, runs a tensor
operation or asks for a GPU: a fork after any of these is unsafe.
"""

from __future__ import annotations

import regroup_trainer.channel
import regroup_trainer.trainer  # noqa: F401 - imported for the sake of having been imported
