"""Where the parts of a job find each other: ports, and paths in their containers."""

from __future__ import annotations

COORDINATOR_PORT = 8471
AGENT_METRICS_PORT = 8472
VOLUME_MOUNT = "/regroup/volume"
TOKEN_FILE = "/regroup/token/token"
DIRECTORY_VARIABLE = "REGROUP_DIRECTORY"
"""Gives a user's script the path of the job's folder on the volume, which may not exist yet."""
