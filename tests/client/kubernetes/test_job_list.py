"""The table of `get`."""

from __future__ import annotations

from regroup.kubernetes.job_list import job_list
from regroup.kubernetes.job_record import read_job
from tests.support.cluster_objects import NOW, job_object, job_record, running_status


def test_a_line_for_each_job_fits_eighty_columns() -> None:
    jobs = [job_record(running_status()), read_job(job_object(name="bert"))]
    header, running, new = job_list(jobs, NOW, with_namespace=False, wide=False)
    assert " ".join(header.split()) == (
        "NAME PHASE WORKERS STEP PROGRESS CKPT RESTARTS GOODPUT AGE"
    )
    assert " ".join(running.split()) == "gpt Running 3/3 120/500 24% 100 2 95.8% 121m"
    assert " ".join(new.split()) == "bert Unknown 0/3 0 - - 0 - 121m"
    assert max(map(len, (header, running, new))) <= 80


def test_wide_adds_the_message_and_all_namespaces_the_namespace() -> None:
    job = job_record(running_status(message="waits for\na node"))
    header, line = job_list([job], NOW, with_namespace=True, wide=True)
    assert header.endswith("MESSAGE")
    assert line.startswith("team ")
    assert line.endswith("waits for\\na node")
