"""Rank 0 saves in many small pieces, as most scripts do: the file has its name from the beginning.
Rank 1 fails meanwhile, once. The next attempt writes down how much it found.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

PIECES, PAUSE_SECONDS = 40, 0.05


def main() -> None:
    """One rank."""
    folder = Path(sys.argv[1])
    saved, found = folder / "saved", folder / "found"
    is_first = not (folder / "failed").exists()
    if os.environ["RANK"] == "0" and is_first:
        with saved.open("wb", buffering=0) as file:
            for _ in range(PIECES):
                file.write(b"x")
                time.sleep(PAUSE_SECONDS)
        time.sleep(600)  # as in a collective, without its peer
    elif os.environ["RANK"] == "0":
        found.write_text(f"{saved.stat().st_size} of {PIECES}")
    elif is_first:
        while not saved.exists():
            time.sleep(0.01)
        (folder / "failed").touch()
        sys.exit(1)


if __name__ == "__main__":
    main()
