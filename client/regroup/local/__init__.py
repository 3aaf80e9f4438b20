"""Runs a TrainingJob on this machine, without a cluster."""
