"""Decisions: from what was observed to a plan and a status. Pure."""
