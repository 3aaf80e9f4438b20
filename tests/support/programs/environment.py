"""A program that writes its environment into FOLDER/RANK.json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

folder = Path(sys.argv[1])
(folder / f"{os.environ['RANK']}.json").write_text(json.dumps(dict(os.environ)))
