"""Records the history that the pictures of the dashboards show: a run with faults on this machine,
with everything real but the nodes.
"""
