"""What a pod template must not be, and which sentence says so."""

from __future__ import annotations

from typing import Any

import pytest

from regroup_operator.api.template_check import check_template
from regroup_operator.errors import TemplateError
from regroup_trainer.protocol.environment import USER_VARIABLES


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"spec": {"restartPolicy": "Always"}}, "spec.template.spec.restartPolicy"),
        ({"spec": {"nodeName": "n1"}}, "spec.template.spec.nodeName"),
        ({"metadata": {"name": "x"}}, "spec.template.metadata.name"),
        ({"metadata": {"labels": {"regroup.dev/job": "other"}}}, "regroup.dev/job"),
        ({"status": {}}, "spec.template.status"),
        ({"spec": {"containers": [{"image": "x"}]}}, "containers[0].name: is missing"),
        (
            {"spec": {"containers": [{"name": "trainer", "env": [{"name": "REGROUP_INDEX"}]}]}},
            "env[REGROUP_INDEX]",
        ),
        (
            {
                "spec": {
                    "containers": [
                        {"name": "a", "volumeMounts": [{"mountPath": "/regroup/token/"}]}
                    ]
                }
            },
            "volumeMounts",
        ),
        ({"spec": {"volumes": [{"name": "token"}]}}, "volumes[token]"),
        (
            {"spec": {"initContainers": [{"name": "regroup-agent"}]}},
            "initContainers[regroup-agent]",
        ),
        (
            {
                "spec": {
                    "containers": [{"name": "a", "volumeMounts": [{"mountPath": "/regroup/agent"}]}]
                }
            },
            "volumeMounts",
        ),
        ({"spec": {"containers": [{"name": "trainer", "$patch": "delete"}]}}, "$patch"),
        (
            {"spec": {"containers": "trainer"}},
            "spec.template.spec.containers: must be a list, got 'trainer'",
        ),
    ],
)
def test_what_the_operator_relies_on_is_reserved_by_name(
    template: dict[str, Any], field: str
) -> None:
    with pytest.raises(TemplateError) as caught:
        check_template(template)
    assert field in str(caught.value)


@pytest.mark.parametrize("name", USER_VARIABLES)
def test_variables_that_users_set_for_their_ranks_are_taken(name: str) -> None:
    check_template(trainer(env=[{"name": name, "value": "1"}]))


def nested(levels: int) -> dict[str, Any]:
    """An object inside an object, and so on."""
    node: dict[str, Any] = {}
    for _ in range(levels):
        node = {"a": node}
    return node


def trainer(**fields: Any) -> dict[str, Any]:
    """A template of the main container alone."""
    return {"spec": {"containers": [{"name": "trainer", **fields}]}}


SPEC, MAIN = "spec.template.spec", "spec.template.spec.containers[trainer]"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"spec": None}, f"{SPEC}: got None"),
        ({"metadata": None}, "spec.template.metadata: got None"),
        ({"spec": False}, f"{SPEC}: must be an object, got False"),
        ({"spec": {"containers": None}}, f"{SPEC}.containers: got None"),
        ({"spec": {"containers": 7}}, f"{SPEC}.containers: must be a list, got 7"),
        ({"spec": {"containers": {}}}, f"{SPEC}.containers: must be a list, got {{}}"),
        ({"spec": {"containers": [None]}}, f"{SPEC}.containers[0]: must be an object, got None"),
        (trainer(env=None), f"{MAIN}.env: got None"),
        (trainer(env=[{"value": "1"}]), f"{MAIN}.env[0].name: is missing"),
        (trainer(env=[{"name": "A", "value": 1}]), f"{MAIN}.env[A].value: must be a string, got 1"),
        (trainer(env=[{"name": ["A"]}]), f"{MAIN}.env[0].name: must be a string, got ['A']"),
        (trainer(volumeMounts=None), f"{MAIN}.volumeMounts: got None"),
        (trainer(resources="x"), f"{MAIN}.resources: must be an object, got 'x'"),
        (
            trainer(resources={"limits": {"cpu": "banana"}}),
            f"{MAIN}.resources.limits[cpu]: must be an amount such as 2, 500m or 16Gi",
        ),
        (trainer(ports=[{"containerPort": 2**31}]), "containerPort: must lie between"),
        (trainer(image="a "), f"{MAIN}.image: must neither begin nor end with a blank, got 'a '"),
        (trainer(resources={"limits": {"gpu": 1}}), "limits: 'gpu' is no resource: write cpu"),
        (
            trainer(resources={"limits": {"nvidia.com/gpu": "1500m"}}),
            "limits: 'nvidia.com/gpu' must be a whole number, got '1500m'",
        ),
        (trainer(resources={"limits": {"cpu": "9" * 9999}}), "limits[cpu]: must be an amount"),
        (trainer(tty="yes"), f"{MAIN}.tty: must be true or false, got 'yes'"),
        (
            {"metadata": {"labels": ["a"]}},
            "spec.template.metadata.labels: must be an object, got ['a']",
        ),
        ({"metadata": {"labels": 7}}, "spec.template.metadata.labels: must be an object, got 7"),
        (
            {"metadata": {"labels": {"a": True}}},
            "spec.template.metadata.labels[a]: must be a string, got True: write it in quotation",
        ),
        ({"metadata": {"labels": {"a b": "c"}}}, "labels: 'a b' is no key"),
        ({"spec": {"volumes": False}}, f"{SPEC}.volumes: must be a list, got False"),
        ({"spec": {"volumes": None}}, f"{SPEC}.volumes: got None"),
        ({"spec": {"volumes": [{"name": []}]}}, f"{SPEC}.volumes[0].name: must be a string"),
        ({"spec": {"volumes": [{"name": "A"}]}}, f"{SPEC}.volumes[A].name: must have lower-case"),
        ({"spec": {"tolerations": [{"effect": "No"}]}}, "effect: must be NoSchedule, Prefer"),
        (nested(80), "spec.template: has more than 64 levels"),
        ({"spec": {3: 4}}, "spec.template.spec: the key 3 must be a string"),
    ],
)
def test_what_no_pod_can_be_is_refused_with_field_and_value(
    template: dict[str, Any], message: str
) -> None:
    with pytest.raises(TemplateError) as caught:
        check_template(template)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"spec": {"affinity": None, "tolerations": None, "initContainers": None}},
        {"metadata": {"labels": None, "annotations": {"example.com/a": "b c"}}},
        trainer(resources={"limits": {"cpu": 2, "memory": "16Gi", "nvidia.com/gpu": "1e1"}}),
        trainer(fieldOfANewerKubernetes={"a": [1]}),
        {"spec": {"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1}]}},
    ],
)
def test_what_may_be_a_part_of_a_pod_is_let_through(template: dict[str, Any]) -> None:
    check_template(template)
