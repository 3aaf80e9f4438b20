"""The table of Kubernetes' types follows from its OpenAPI document."""

from __future__ import annotations

from devcluster.pod_schema import derive

CORE = "io.k8s.api.core.v1."


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/definitions/{name}"}


def test_types_are_followed_and_what_the_api_server_fills_in_is_left_out() -> None:
    quantity = "io.k8s.apimachinery.pkg.api.resource.Quantity"
    amounts = {"type": "object", "additionalProperties": ref(quantity)}
    count = {"type": "integer", "format": "int32"}
    definitions = {
        f"{CORE}Pod": {
            "properties": {"spec": ref(f"{CORE}PodSpec"), "status": ref(f"{CORE}PodStatus")}
        },
        f"{CORE}PodSpec": {
            "properties": {"names": {"type": "array", "items": {"type": "string"}}, "count": count},
            "required": ["names"],
        },
        f"{CORE}PodTemplateSpec": {},
        f"{CORE}ResourceRequirements": {"properties": {"limits": amounts}},
        f"{CORE}PersistentVolumeClaim": {},
    }
    found = derive(definitions)
    assert found["Pod"]["fields"] == {"spec": "PodSpec"}
    assert found["PodSpec"] == {
        "fields": {"count": "int32", "names": "[string]"},
        "required": ["names"],
    }
    assert found["ResourceRequirements"]["fields"] == {"limits": "{quantity}"}
    assert "PodStatus" not in found
