"""`doctor`: checks a cluster before the first job."""

from __future__ import annotations

import sys

import click

from regroup.cli.cluster_options import (
    ChosenCluster,
    Verb,
    note,
    on_cluster,
    output_option,
    print_structured,
    show,
    width,
)

IMAGE = "busybox:1.37"


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob doctor",
        "kubectl trainingjob doctor --claim shared --yes",
        "kubectl trainingjob doctor -n team -o json",
    ),
)
@click.option("--claim", metavar="NAME", help="Check this claim by two pods on two nodes.")
@click.option(
    "--image", default=IMAGE, show_default=True, metavar="IMAGE",
    help="Of these pods; it needs sh, dd and sleep.",
)  # fmt: skip
@click.option(
    "--operator-namespace", default="regroup-system", show_default=True, metavar="NAME",
    help="Where the operator is.",
)  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask before pods are created.")
@output_option(without="name")
@on_cluster
def doctor(
    cluster: ChosenCluster,
    claim: str | None,
    image: str,
    operator_namespace: str,
    yes: bool,
    output: str | None,
) -> None:
    """Check a cluster before the first job.

    Version, operator, your rights, GPUs, Prometheus, Kueue; with --claim also
    whether nodes share the storage and how fast it is. Each line is OK, WARN or
    FAIL, with what to do. The exit code is 1 where something fails.
    """
    from regroup.diagnosis.cluster_checks import exit_code, no_claim, report_lines
    from regroup.diagnosis.cluster_survey import read_claim, survey
    from regroup.diagnosis.volume_probe import Probe

    findings = survey(cluster.api, cluster.namespace, operator_namespace)
    if claim is None:
        findings.append(no_claim())
    else:
        findings.append(read_claim(cluster.api, cluster.namespace, claim))
        probe = Probe(cluster.api, cluster.namespace, claim, image)
        if findings[-1].state == "ok":
            note(probe.announcement())
            if yes or click.confirm("Create them?", err=True):
                findings += probe.run()
    if output is not None:
        print_structured({"findings": findings}, output)
    else:
        show(report_lines(findings, width()))
    sys.exit(exit_code(findings))
