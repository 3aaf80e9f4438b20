"""Records the history that the pictures of the dashboards show: a run with faults on this machine,
with everything real but the nodes.
"""

from pathlib import Path

FILE = Path(__file__).with_name("history.gz")
"""What was recorded last."""

LACKED: frozenset[str] = frozenset()
"""Series that are younger than what was recorded. The next recording has them: empty this then."""
