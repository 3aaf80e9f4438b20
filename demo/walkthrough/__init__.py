"""`make walkthrough`: a new user's way through the documentation, on a fresh cluster.

`steps.py` has the steps and their checks, `documented.py` the commands as the pages have them, and
`transcript.py` writes down what was typed and what it printed.
"""
