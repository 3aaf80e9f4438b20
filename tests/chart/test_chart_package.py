"""What comes with the chart: `helm test`, plain manifests, its page, what Artifact Hub shows."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.support.chart import (
    CHART,
    ROOT,
    Objects,
    by_name,
    program,
    render,
    rendered_text,
    template,
    write_overlay,
)
from tests.support.specs import SAMPLE_JOBS
from tools import chart_pages

MANIFESTS = ROOT / "manifests"
DEFINITION = ("CustomResourceDefinition", "trainingjobs.regroup.dev")


def test_helm_test_starts_a_restricted_pod_that_the_operators_selector_leaves_alone() -> None:
    objects = render('watch.namespaces=["a", "b"]')
    pod = objects["Pod", "regroup-test"]
    operator = objects["Deployment", "regroup"]["spec"]["template"]["spec"]
    annotations = pod["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "test"
    # Helm reads the log after it has deleted what it is to delete: `helm test --logs` would fail.
    assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation"
    selector = objects["Deployment", "regroup"]["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= pod["metadata"]["labels"].items()
    for field in ("securityContext", "serviceAccountName"):
        assert pod["spec"][field] == operator[field]
    (container,), (main,) = pod["spec"]["containers"], operator["containers"]
    for field in ("securityContext", "image"):
        assert container[field] == main[field]
    lease = next(e["value"] for e in main["env"] if e["name"] == "REGROUP_OPERATOR_LEASE")
    assert container["command"] == ["python", "-m", "regroup_operator.installation_check"]
    assert container["args"] == [lease, "a", "b"]


def built(folder: Path) -> Objects:
    """What `kubectl apply -k` applies, as kubectl puts it together."""
    done = program("kubectl", "kustomize", folder)
    assert done.returncode == 0, done.stderr
    return by_name(done.stdout)


def of_the_chart(*settings: str) -> Objects:
    """What helm installs with these settings, but for dashboards and the test."""
    chart = dict(render("dashboards.enabled=false", *settings))
    del chart["Pod", "regroup-test"]
    return chart


def test_the_plain_manifests_are_what_the_chart_renders() -> None:
    base, chart = built(MANIFESTS), of_the_chart()
    namespace = base.pop(("Namespace", "regroup-system"))
    labels = namespace["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}
    assert base.pop(DEFINITION)["spec"] == chart.pop(DEFINITION)["spec"]
    assert base == chart


@pytest.mark.parametrize("tag", ["v1", "0123456"])
def test_the_overlay_of_the_page_is_the_chart_with_own_images(tmp_path: Path, tag: str) -> None:
    """A short commit of digits alone can be a tag, too."""
    (tmp_path / "manifests").symlink_to(MANIFESTS)
    write_overlay(tmp_path, "example.com:5000/team", tag)
    images = [
        f"{image}={json.dumps({'repository': f'example.com:5000/team/{name}', 'tag': tag})}"
        for image, name in (("image", "regroup-operator"), ("trainer.image", "regroup-trainer"))
    ]
    overlay, chart = built(tmp_path / "overlay"), of_the_chart(*images)
    assert overlay.keys() - chart.keys() == {("Namespace", "regroup-system")}
    same = chart.keys() - {DEFINITION}
    assert {name: overlay[name] for name in same} == {name: chart[name] for name in same}


def test_the_head_of_the_plain_manifests_says_how_they_are_made() -> None:
    head, _, body = (MANIFESTS / "operator.yaml").read_text().partition("---\n")
    command = re.search(r"`helm template (.*?)`", head.replace("\n#", ""))
    assert command
    _, chart, *flags = command[1].split()
    done = template(*flags, chart=ROOT / chart)
    assert done.stdout == f"---\n{body}"


def test_the_page_and_the_annotations_are_as_generated() -> None:
    page, chart = ((CHART / name).read_text() for name in ("README.md", "Chart.yaml"))
    assert chart_pages.with_table(page) == page
    assert chart_pages.with_annotations(chart) == chart
    assert all(f"| `{value.path}` |" in page for value in chart_pages.values())


def test_artifact_hub_finds_images_and_examples_as_they_are() -> None:
    shown = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    texts = {name.rpartition("/")[2]: yaml.safe_load(text) for name, text in shown.items()}
    assert all(image["image"] in rendered_text() for image in texts["images"])
    assert [one["kind"] for one in texts["crds"]] == ["TrainingJob"]
    assert texts["crdsExamples"] == [yaml.safe_load(job.read_text()) for job in SAMPLE_JOBS]
    assert {entry["kind"] for entry in texts["changes"]} <= {
        "added", "changed", "deprecated", "removed", "fixed", "security",
    }  # fmt: skip


def test_changes_are_the_first_sentences_of_a_versions_entries() -> None:
    changelog = """
## [Unreleased]

### Added

- not yet

## [2.0]

### Changed

- [`a`](b.md) -> `c`. More
  of it:
  - inner

Words.

### Fixed

- It: `now`
  ended
  ([how](b.md)). Much later.

## [1.0]

- long ago
"""
    assert chart_pages.changes(changelog, "2.0") == [
        {"kind": "changed", "description": "`a` -> `c`."},
        {"kind": "fixed", "description": "It: `now` ended."},
    ]
    assert chart_pages.changes(changelog, "2.1") == [{"kind": "added", "description": "not yet"}]


def test_of_many_changes_the_first_of_each_kind_are_shown_with_a_way_to_all() -> None:
    kinds = {"Added": 30, "Changed": 9, "Fixed": 30}
    sections = [
        f"### {kind}\n\n" + "".join(f"- {kind} {n}.\n" for n in range(count))
        for kind, count in kinds.items()
    ]
    changelog = "\n## [Unreleased]\n\n" + "\n".join(sections)
    *shown, last = chart_pages.changes(changelog, "2.1")
    expected = {"added": 16, "changed": 9, "fixed": 15}
    assert Counter(entry["kind"] for entry in shown) == expected
    assert [shown[place]["description"] for place in (0, 16, 25)] == [
        "Added 0.", "Changed 0.", "Fixed 0.",
    ]  # fmt: skip
    assert "CHANGELOG.md" in last["links"][0]["url"]


@pytest.mark.parametrize(
    ("version", "fits"), [("v1.29.9", False), ("v1.30.0", True), ("v1.37.1-gke.1", True)]
)
def test_the_chart_asks_for_kubernetes_1_30(version: str, fits: bool) -> None:
    flags = ("--kube-version", version, "--show-only", "templates/disruptionbudget.yaml")
    assert (template(*flags).returncode == 0) == fits
