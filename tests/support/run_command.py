"""`regroup run` of a job with a script, which these tests end before it starts."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from regroup.cli.command_line import main

JOB = """\
apiVersion: regroup.dev/v1alpha1
kind: TrainingJob
metadata: {{name: gpt}}
spec:
  launcher: {launcher}
  template: {{spec: {{containers: [{{name: trainer, command: [python, train.py]}}]}}}}
"""


def run_script_job(job: Path, folder: Path, launcher: str = "regroup") -> Result:
    """Write the job to a file, and run it in a folder."""
    job.write_text(JOB.format(launcher=launcher))
    return CliRunner().invoke(main, ["run", str(job), "--directory", str(folder)])
