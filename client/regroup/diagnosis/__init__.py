"""Looks into the pods of a job, and gathers what a ticket about it needs."""
