"""Causes on a cluster the alerts that none of the ten faults causes."""
