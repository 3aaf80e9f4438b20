"""Records the history that the pictures of the dashboards show: a run with faults on this machine,
with everything real but the nodes.
"""

from pathlib import Path

FILE = Path(__file__).with_name("history.gz")
"""What was recorded last."""

LACKED = frozenset(
    {
        "trainingjob_mfu_ratio",
        "trainingjob_gpu_seconds_total",
        "trainingjob_rank_memory_bytes",
        "trainingjob_rank_collective_seconds_total",
    }
)
"""Series that are younger than what was recorded. The next recording has them: empty this then."""
