"""The program of a rank whose function was pickled. It is sent with the function.

It runs under the Python of any image, and so uses only the standard library. The library that
pickled the function lies beside it, so that the image need not have it.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

WRONG_USAGE = 2
"""As in `protocol.exit_codes`, which the image need not have: it would fail again."""


def main(folder: Path) -> None:
    """Call the function. Exits where this is another Python than the one that pickled it."""
    wanted = (folder / "python").read_text().strip()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != wanted:
        print(
            f"the function was pickled by Python {wanted}, and this image has {here}: use an image "
            f"with Python {wanted}, call train() from Python {here}, or import within the function "
            "all that it uses, so that its text can be sent",
            file=sys.stderr,
        )
        sys.exit(WRONG_USAGE)
    sys.path.insert(1, str(folder / "cloudpickle.zip"))
    function, arguments = pickle.loads((folder / "function.pickle").read_bytes())
    function(**arguments)


if __name__ == "__main__":
    main(Path(__file__).parent)
