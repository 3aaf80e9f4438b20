"""The demo: a job on a real cluster loses the node of its rank 0, and finishes all the same; and the proof of it."""
