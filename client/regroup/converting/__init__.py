"""From the jobs of others to TrainingJobs: one module for each kind of source. What cannot be
taken over is reported. Pure.
"""
