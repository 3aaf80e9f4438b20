"""What the lines of a coordinator's or an agent's log are about."""

from __future__ import annotations

import json
import re

FORMS = ("text", "json")
_TEXT = re.compile(r"^[-\d]+ [:,\d]+ [A-Z]+ (\S+/\S+?(?: \d+\.\d+)?): (.*)$", re.MULTILINE)


def subjects_of(log: str, form: str) -> dict[str, str]:
    """Message of each line -> what it is about, as text has it: `team/gpt 1.2`. What a program has
    written without Regroup's log is left out.
    """
    if form == "text":
        return {message: about for about, message in _TEXT.findall(log)}
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return {line["message"]: _subject(line) for line in lines}


def _subject(line: dict[str, str]) -> str:
    job = "/".join(line.get(name, "") for name in ("namespace", "trainingjob"))
    return f"{job} {line.get('generation', '')}".rstrip()
