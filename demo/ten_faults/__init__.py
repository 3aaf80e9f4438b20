"""Breaks a job in ten ways on a cluster and writes what a user then sees."""
