"""TrainingJobs as YAML, with what a conversion left out as comments. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from regroup_trainer.protocol.message import printable


class _Dumper(yaml.SafeDumper):
    """Writes a value twice where it stands twice, and long texts as blocks."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Names for values are for programs."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def job_yaml(job: Mapping[str, Any], comments: Sequence[str]) -> str:
    """A document with comments above it, one a line."""
    lines = "".join(f"# {printable(line)}\n" for line in comments)
    body: str = yaml.dump(dict(job), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return f"{lines}{body}"
