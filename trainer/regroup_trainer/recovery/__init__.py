"""How the ranks of a new generation get their state: from live ranks, or from a snapshot or
checkpoint.
"""
