"""For each alert, what Prometheus scrapes while it fires, and while it stays quiet."""

from __future__ import annotations

from dataclasses import dataclass, field

Labels = dict[str, str]
JOB: Labels = {"namespace": "team", "trainingjob": "gpt"}


def series(name: str, /, **labels: str) -> str:
    """A series as promtool's tests name it."""
    shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{shown}}}"


def of_job(name: str, /, **labels: str) -> str:
    """A series of the job."""
    return series(f"trainingjob_{name}", **JOB, **labels)


def phase(name: str) -> dict[str, str]:
    """The job is in this phase all the time."""
    return {
        of_job("status_phase", phase=one): f"{int(one == name)}x300"
        for one in ("Pending", "Running", "Recovering", "Suspended")
    }


RUNNING = phase("Running")


@dataclass(frozen=True)
class Course:
    """What Prometheus scrapes, once a minute, and the minute in which the alert is looked at."""

    minute: int
    given: dict[str, str]
    """Series -> its values, in promtool's notation: `0+10x5` is 0, 10 ... 50; `_` is no sample."""


@dataclass(frozen=True)
class Fires(Course):
    """A course in which the alert fires."""

    labels: Labels = field(default_factory=lambda: JOB)
    shown: str = ""
    """What the texts show in place of a template that is more than a label."""


COURSES: dict[str, tuple[Course, ...]] = {
    "TrainingJobStalled": (
        Fires(40, {**RUNNING, of_job("step", pod="w0"): "0+10x10 100x90"}, shown="100"),
        # Rank 0 has moved, and some steps were done again. Its former pod is not gone yet.
        Course(
            60,
            {
                **RUNNING,
                of_job("step", pod="w0"): "0+10x30 300x60",
                of_job("step", pod="w1"): "_x30 250+10x60",
            },
        ),
        Course(40, {**phase("Suspended"), of_job("step", pod="w0"): "100x90"}),
    ),
    "TrainingJobRankUnresponsive": (
        Fires(
            30,
            {
                **RUNNING,
                of_job("rank_heartbeat_timestamp_seconds", rank="0"): "0+60x90",
                of_job("rank_heartbeat_timestamp_seconds", rank="1"): "0+60x10 600x90",
            },
            shown="20m 0s",
        ),
        # The rank has moved. Its former pod is not gone yet.
        Course(
            30,
            {
                **RUNNING,
                of_job("rank_heartbeat_timestamp_seconds", rank="1", pod="w0"): "0+60x10 600x90",
                of_job("rank_heartbeat_timestamp_seconds", rank="1", pod="w1"): "_x10 600+60x90",
            },
        ),
        Course(
            30,
            {
                **RUNNING,
                of_job("rank_heartbeat_timestamp_seconds", rank="0"): "0x90",
                of_job("volume_unavailable"): "1x90",
            },
        ),
        # More than 256 ranks: each worker has the oldest report of its ranks.
        Fires(
            30,
            {
                **RUNNING,
                of_job("rank_heartbeat_timestamp_seconds", instance="w0"): "0+60x90",
                of_job("rank_heartbeat_timestamp_seconds", instance="w1"): "0+60x10 600x90",
            },
            shown="20m 0s",
        ),
        Course(
            30,
            {
                **RUNNING,
                of_job("rank_heartbeat_timestamp_seconds", instance="w0"): "0+60x90",
                of_job("rank_heartbeat_timestamp_seconds", instance="w1"): "0+60x90",
            },
        ),
        Course(30, {**phase("Suspended"), of_job("rank_heartbeat_timestamp_seconds"): "0x90"}),
    ),
    "TrainingJobBelowMinWorkers": (
        Fires(
            20,
            {
                **phase("Recovering"),
                of_job("workers", state="ready"): "3x10 1x50",
                of_job("workers", state="min"): "2x60",
            },
            shown="1",
        ),
        Course(
            20,
            {
                **phase("Suspended"),
                of_job("workers", state="ready"): "0x60",
                of_job("workers", state="min"): "2x60",
            },
        ),
    ),
    "TrainingJobCrashLooping": (
        Fires(35, {of_job("restarts_total", cause="application"): "0x10 1x5 2x5 3x5 4x40"}),
        Fires(5, {of_job("waiting", reason="BackOff"): "1x10"}),
        Course(35, {of_job("restarts_total", cause="infrastructure"): "0+1x60"}),
        # Another replica of the operator leads, and exports the counts so far.
        Course(
            35,
            {
                of_job("restarts_total", cause="application", pod="a"): "9x20",
                of_job("restarts_total", cause="application", pod="b"): "_x20 9x40",
            },
        ),
    ),
    "TrainingJobFailed": (
        # It failed before anything was scraped of it.
        Fires(5, {of_job("status_phase", phase="Failed"): "1x300"}),
        Fires(30, {of_job("status_phase", phase="Failed"): "0x20 1x300"}),
        # It was created again under its name, and has failed again.
        Fires(78, {of_job("status_phase", phase="Failed"): "1x65 0x5 1x300"}),
        # It is an hour ago. Another replica of the operator leads since.
        Course(
            90,
            {
                of_job("status_phase", phase="Failed", pod="a"): "0x5 1x60",
                of_job("status_phase", phase="Failed", pod="b"): "_x66 1x300",
            },
        ),
        Course(30, {of_job("status_phase", phase="Failed"): "0x300"}),
    ),
    "TrainingJobPendingTooLong": (
        Fires(
            31,
            {**phase("Pending"), of_job("waiting", reason="Unschedulable"): "1x60"},
            shown="Unschedulable",
        ),
        Course(60, {**phase("Suspended"), of_job("waiting", reason="Suspended"): "1x60"}),
    ),
    "TrainingJobVolumeUnavailable": (
        Fires(10, {of_job("volume_unavailable"): "0x5 1x30"}),
        Course(12, {of_job("volume_unavailable"): "0x10 1x1 0x30"}),
    ),
    "TrainingJobCheckpointFailing": (
        Fires(
            40,
            {
                of_job("checkpoint_failures_total", stage="write"): "0x20 1x40",
                of_job("checkpoint_last_success_timestamp_seconds"): "300x60",
            },
        ),
        Fires(10, {of_job("checkpoint_failures_total", stage="write"): "0x4 1x40"}),
        Course(
            40,
            {
                of_job("checkpoint_failures_total", stage="write"): "0x20 1x40",
                of_job("checkpoint_last_success_timestamp_seconds"): "300x20 1500x40",
            },
        ),
    ),
    "TrainingJobCheckpointStale": (
        Fires(
            80,
            {**RUNNING, of_job("checkpoint_last_success_timestamp_seconds"): "600x100"},
            shown="1h 10m 0s",
        ),
        # It makes steps since minute 5, has moved, and has never saved.
        Fires(
            80,
            {
                **RUNNING,
                of_job("step", pod="w0"): "_x5 0+1x30",
                of_job("step", pod="w1"): "_x30 25+1x90",
                of_job("rank_collective_seconds_total", op="commit", rank="0"): "_x5 0+1x90",
            },
            shown="1h 15m 0s",
        ),
        # It has made steps for less than an hour.
        Course(
            80,
            {
                **RUNNING,
                of_job("step"): "_x30 0+1x90",
                of_job("rank_collective_seconds_total", op="commit", rank="0"): "_x30 0+1x90",
            },
        ),
        # A script that reports its steps saves by itself.
        Course(80, {**RUNNING, of_job("step"): "0+1x100"}),
        # Rank 0 has moved to a pod that has saved since.
        Course(
            80,
            {
                **RUNNING,
                of_job("checkpoint_last_success_timestamp_seconds", pod="w0"): "600x20 _x80",
                of_job("checkpoint_last_success_timestamp_seconds", pod="w1"): "_x20 3000x80",
            },
        ),
    ),
    "TrainingJobCoordinatorUnreachable": (
        Fires(15, {of_job("waiting", reason="CoordinatorUnreachable"): "1x30"}),
        Fires(15, {**RUNNING, of_job("degraded", reason="CoordinatorUnreachable"): "1x30"}),
        # A successor answers.
        Course(40, {**RUNNING, of_job("degraded", reason="CoordinatorUnreachable"): "1x9 _x90"}),
        # Prometheus alone is kept from the coordinator: its series are missing.
        Course(40, {**RUNNING, of_job("generation", pod="c1"): "3x10 _x90"}),
        Course(15, {**RUNNING, of_job("degraded", reason="NoProgress"): "1x30"}),
    ),
    "TrainingJobObjectConflict": (
        Fires(10, {of_job("waiting", reason="ObjectConflict"): "1x30"}),
        Course(10, {of_job("waiting", reason="ImageError"): "1x30"}),
    ),
    "TrainingJobStraggler": (
        Fires(20, {of_job("straggler_ratio"): "1.5x60"}, shown="1.5"),
        Course(20, {of_job("straggler_ratio"): "1.5x10 1.2x50"}),
    ),
    "TrainingJobMemoryNearLimit": (
        Fires(
            20,
            {
                of_job("rank_memory_bytes", rank="0", kind="host", instance="w0"): "45x60",
                of_job("rank_memory_bytes", rank="1", kind="host", instance="w0"): "50x60",
                of_job("rank_memory_bytes", rank="0", kind="host_available", instance="w0"): "5x60",
                of_job("rank_memory_bytes", rank="1", kind="host_available", instance="w0"): "5x60",
            },
            shown="5%",
        ),
        Fires(
            20,
            {
                of_job("rank_memory_bytes", rank="0", kind="gpu"): "50x60",
                of_job("rank_memory_bytes", rank="0", kind="gpu_available"): "50x60",
                of_job("rank_memory_bytes", rank="1", kind="gpu"): "98x60",
                of_job("rank_memory_bytes", rank="1", kind="gpu_available"): "2x60",
            },
            shown="2%",
        ),
        # Two workers, each with a machine of its own.
        Course(
            20,
            {
                of_job("rank_memory_bytes", rank="0", kind="host", instance="w0"): "50x60",
                of_job("rank_memory_bytes", rank="1", kind="host", instance="w1"): "50x60",
                of_job("rank_memory_bytes", rank="0", kind="host_available", instance="w0"): "9x60",
                of_job("rank_memory_bytes", rank="1", kind="host_available", instance="w1"): "9x60",
                of_job("rank_memory_bytes", rank="0", kind="gpu", instance="w0"): "90x60",
                of_job("rank_memory_bytes", rank="0", kind="gpu_available", instance="w0"): "9x60",
            },
        ),
    ),
    "TrainingJobGoodputLow": (
        Fires(
            130,
            {
                **RUNNING,
                of_job("time_seconds_total", phase="step"): "0+24x200",
                of_job("time_seconds_total", phase="rendezvous"): "0+36x200",
                of_job("lost_work_seconds_total"): "0+6x200",
                of_job("generation"): "1x200",
            },
            shown="30%",
        ),
        Course(
            130,
            {
                **RUNNING,
                of_job("time_seconds_total", phase="step"): "0+50x200",
                of_job("time_seconds_total", phase="data_wait"): "0+10x200",
                of_job("lost_work_seconds_total"): "0x200",
                of_job("generation"): "1x200",
            },
        ),
        # The first hour of a job that takes long to start.
        Course(
            59,
            {
                **RUNNING,
                of_job("time_seconds_total", phase="startup"): "0+60x200",
                of_job("time_seconds_total", phase="step"): "0x200",
                of_job("lost_work_seconds_total"): "0x200",
                of_job("generation"): "1x200",
            },
        ),
    ),
    "TrainingJobLossNaN": (
        Fires(12, {of_job("nonfinite_steps_total"): "0x10 1x30"}),
        Fires(12, {of_job("loss"): "2x5" + 20 * " NaN"}),
        Course(12, {of_job("nonfinite_steps_total"): "3x60", of_job("loss"): "2x60"}),
    ),
    "TrainingJobLossSpike": (
        Fires(100, {of_job("loss"): "2x90 4x40"}, shown="2"),
        Course(100, {of_job("loss"): "4-0.01x130"}),
        # It is noisy all the time.
        Course(100, {of_job("loss"): " ".join(["1 5"] * 45 + ["5"] * 40)}),
    ),
    "TrainingJobOperatorDown": (
        # One replica stands by, and an operator of somebody else leads.
        Fires(
            12,
            {
                series("leader_election_master_status", name="regroup", instance="a"): "1x5 0x30",
                series("trainingjob_internal_errors_total", instance="a"): "0x60",
                series("leader_election_master_status", name="other", instance="z"): "1x60",
            },
            labels={},
        ),
        Course(
            12,
            {
                series("leader_election_master_status", name="regroup", instance="a"): "1x5 _x30",
                series("leader_election_master_status", name="regroup", instance="b"): "0x5 1x30",
                series("trainingjob_internal_errors_total", instance="b"): "0x60",
            },
        ),
    ),
    "TrainingJobReconcileErrors": (
        Fires(
            35,
            {
                series(
                    "controller_runtime_reconcile_errors_total",
                    namespace="regroup-system",
                    controller="trainingjob",
                ): "0+1x60"
            },
            labels={"namespace": "regroup-system"},
            shown="15",
        ),
        Course(
            35,
            {
                series(
                    "controller_runtime_reconcile_errors_total",
                    namespace="regroup-system",
                    controller="trainingjob",
                ): " ".join(str(minute // 4) for minute in range(60))
            },
        ),
    ),
    "TrainingJobInternalError": (
        Fires(
            10,
            {
                series(
                    "trainingjob_internal_errors_total", namespace="regroup-system", instance="a"
                ): "0x5 1x30",
                series("leader_election_master_status", instance="a"): "1x60",
            },
            labels={"namespace": "regroup-system"},
        ),
        # The pod of a tenant exports the series too.
        Course(
            10,
            {
                series(
                    "trainingjob_internal_errors_total", namespace="team", instance="z"
                ): "0+1x60",
                series("leader_election_master_status", instance="a"): "1x60",
            },
        ),
    ),
    "TrainingJobGpuXid": (
        # The rank has died of it.
        Fires(
            14,
            {
                series(
                    "DCGM_FI_DEV_XID_ERRORS",
                    gpu="3",
                    namespace="gpu-operator",
                    exported_namespace="team",
                    exported_pod="gpt-w0-1",
                ): "0x5 79x30",
                of_job("rank_step", pod="gpt-w0-1", rank="0"): "0+1x5 _x30",
            },
            labels={**JOB, "pod": "gpt-w0-1", "gpu": "3"},
            shown="79",
        ),
        # A pod of somebody else says that it trains two jobs.
        Fires(
            14,
            {
                series(
                    "DCGM_FI_DEV_XID_ERRORS", gpu="3", namespace="team", pod="gpt-w0-1"
                ): "79x30",
                of_job("rank_step", pod="gpt-w0-1", rank="0"): "0+1x30",
                **{
                    series(
                        "trainingjob_rank_step", namespace="other", pod="liar", trainingjob=job
                    ): "1x30"
                    for job in ("a", "b")
                },
            },
            labels={**JOB, "pod": "gpt-w0-1", "gpu": "3"},
            shown="79",
        ),
        # XID 43 comes of a program that was killed; the other pod belongs to no job.
        Course(
            10,
            {
                series(
                    "DCGM_FI_DEV_XID_ERRORS", gpu="3", namespace="team", pod="gpt-w0-1"
                ): "43x30",
                series(
                    "DCGM_FI_DEV_XID_ERRORS", gpu="4", namespace="team", pod="notebook"
                ): "79x30",
                of_job("rank_step", pod="gpt-w0-1", rank="0"): "0+1x30",
            },
        ),
    ),
}
