"""What a coordinator of release 0.1 sends is understood; it is sent what it understands, and so is
one of release 0.2.0 (protocol 2), which knows the same fields of Desired.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from regroup_trainer.protocol.accelerate_settings import AccelerateLaunch
from regroup_trainer.protocol.config import PRESETS, ModelConfig, TrainConfig
from regroup_trainer.protocol.desired import Desired, LastKnown, Lost
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.protocol.ledger import Ledger
from regroup_trainer.protocol.message import PROTOCOL_VERSION
from tests.support.message_fields import unknown
from tests.support.version_one_records import VERSIONS, recorded


def test_every_field_of_an_answer_is_read_under_its_name_of_today() -> None:
    status = CoordinatorStatus.parse(json.dumps(recorded("status")))
    assert [recovery.restored_from for recovery in status.recoveries] == [
        "Peers",
        "Snapshot",
        "Checkpoint",
        "Nothing",
    ]
    assert (status.recoveries[0].world_size_before, status.recoveries[0].world_size_after) == (2, 3)
    assert status.outcome is not None
    assert (status.outcome.result, status.outcome.exit_code) == ("failed", 7)
    assert status.progress is not None
    assert (status.progress.step, status.total_steps, status.world_size) == (120, 500, 3)
    assert (str(status.generation), status.protocol, status.waiting) == ("2.4", 1, None)


@pytest.mark.parametrize("part", ["recoveries", "verdict", "members", "generation", "phase"])
@pytest.mark.parametrize("value", [7, "x", [7], [["x"]], {"a": 1}])
def test_a_malformed_answer_is_refused_with_its_version(part: str, value: Any) -> None:
    with pytest.raises(ValueError, match="protocol 1: "):
        CoordinatorStatus.parse(json.dumps({**recorded("status"), part: value}))


def test_an_answer_of_a_release_that_is_not_bridged_says_what_to_do() -> None:
    newer = {**recorded("status"), "protocol": PROTOCOL_VERSION + 1}
    with pytest.raises(ValueError, match=r"^protocol \d+: .*: suspend and resume the job$"):
        CoordinatorStatus.parse(json.dumps(newer))


@pytest.mark.parametrize("text", ["", "[]", "7", "{", "[" * 100_000])
def test_what_is_no_answer_at_all_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        CoordinatorStatus.parse(text)


def make_desired() -> Desired:
    """What `desired.json` was recorded from."""
    return Desired(
        revision=3,
        namespace="default",
        job="gpt",
        replicas=3,
        min_replicas=2,
        max_replicas=4,
        train=TrainConfig(),
        directory="/regroup/volume/default/gpt-0000aaaa",
        seed=Ledger.model_validate(recorded("status")["ledger"]),
    )


@pytest.mark.parametrize("protocol", [1, 2])
def test_it_is_sent_what_its_own_release_sent(protocol: int) -> None:
    release = VERSIONS[protocol]
    assert json.loads(make_desired().to_json(protocol)) == recorded("desired", release)
    lost = Lost(**recorded("lost", release))
    assert lost.model_dump(mode="json") == recorded("lost", release)


def test_a_coordinator_of_today_is_sent_all_of_it() -> None:
    assert Desired.model_validate_json(make_desired().to_json(PROTOCOL_VERSION)) == make_desired()


@pytest.mark.parametrize("protocol", [1, 2])
def test_it_is_sent_no_field_that_it_would_refuse(protocol: int) -> None:
    """A new field of Desired is left out by its table; one below `train` needs a rule there."""
    launch = AccelerateLaunch(config_file="accelerate.yaml")
    known = LastKnown(step=7, time=1.0, world_size=3)
    newer = {"progress_pattern": "step", "accelerate": launch, "last_known": known}
    seed = make_desired().seed.model_copy(update={"gpu_seconds": {"lost": 9.0}})
    desired = make_desired().model_copy(update={**newer, "seed": seed})
    assert unknown(json.loads(desired.to_json(protocol)), recorded("desired_fields")) == []
    assert Desired.model_validate_json(desired.to_json(PROTOCOL_VERSION)) == desired


@pytest.mark.parametrize("preset", sorted(PRESETS["llama"]))
def test_it_knows_the_fields_of_a_model_without_scaling(preset: str) -> None:
    size = PRESETS["llama"][preset].model_copy(update={"rotary_scaling": None})
    model = ModelConfig(name="llama", dimensions=size)
    desired = make_desired().model_copy(update={"train": TrainConfig(model=model)})
    assert unknown(json.loads(desired.to_json(1)), recorded("desired_fields")) == []
    assert Desired.model_validate_json(desired.to_json(1)) == desired
