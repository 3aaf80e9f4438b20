"""From the jobs of others to TrainingJobs: one module for each kind of source. It reads no files,
and what it cannot take over it reports.
"""
