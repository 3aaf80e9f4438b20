"""The demo: a job on a real cluster loses the node of its rank 0 and still completes. The demo
checks the result.
"""
