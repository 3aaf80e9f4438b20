"""The base of every message, and the version of the protocol. Torch-free and Kubernetes-free.

Every message is one JSON object, and `kind` names its class. A change that an older peer would
misread raises PROTOCOL_VERSION. A hello of another version is refused.

| from        | over      | to           | messages                                              |
|-------------|-----------|--------------|-------------------------------------------------------|
| operator    | HTTP      | coordinator  | `desired`; it answers with `job_status`               |
| agent       | WebSocket | coordinator  | `agent_messages`, and its ranks' `rank_messages`      |
| coordinator | WebSocket | agent        | `coordinator_messages`                                |
| agent       | HTTP      | other agents | memory snapshots                                      |
| rank        | socket    | its agent    | `rank_messages`                                       |
| agent       | socket    | its ranks    | Decide, Enter and LeaveGeneration of                  |
|             |           |              | `coordinator_messages`                                |
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL_VERSION = 2
TEXT_LIMIT = 4096
"""Characters of the longest text in a message: longer ones are cut by whoever makes it."""
Text = Annotated[str, Field(max_length=TEXT_LIMIT)]
Name = Annotated[str, Field(max_length=253)]


class Message(BaseModel):
    """Base of all messages: immutable. Unknown fields are an error, since versions are agreed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
