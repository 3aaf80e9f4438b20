"""What the walk-through upgrades to, and what it promises of that."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from demo.installation import Image
from demo.walkthrough import documented
from demo.walkthrough.steps import renamed, upgrade

IMAGES = {
    name: Image(f"localhost/regroup-{name}:1", Path(name)) for name in ("operator", "trainer")
}
BEFORE = {"images": {"trainer": "localhost/regroup-trainer:1"}, "progress": {"step": 50}}
OTHER_IMAGES = {"trainer": "localhost/regroup-trainer:upgrade"}
SHOWN = "regroup 2/2 localhost/regroup-operator:upgrade"


def held(after: dict[str, object], shown: str = SHOWN) -> list[bool]:
    """What of its promises holds after an upgrade to this status."""
    walk = Mock(images=IMAGES, later_images=renamed(IMAGES), transcript=Mock())
    walk.terminal.type_line.return_value = shown
    walk.status.return_value, walk.until_step.return_value = BEFORE, after
    walk.operators.side_effect = [{"regroup-a"}, {"regroup-b"}]
    upgrade(walk)
    (command, changes), _ = walk.terminal.type.call_args_list[0]
    assert command is documented.UPGRADE
    assert command.typed(changes).endswith("image.tag=upgrade,trainer.image.tag=upgrade")
    return [call.args[1] for call in walk.require.call_args_list]


def test_the_operator_has_other_images_afterwards_and_the_job_its_own() -> None:
    assert renamed(IMAGES)["trainer"] == Image("localhost/regroup-trainer:upgrade", Path("trainer"))
    assert held(BEFORE) == [True, True]


@pytest.mark.parametrize(
    ("after", "shown", "expected"),
    [
        ({**BEFORE, "images": OTHER_IMAGES}, SHOWN, [True, False]),
        ({**BEFORE, "restartCount": 1}, SHOWN, [True, False]),
        ({**BEFORE, "goodput": {"lostSteps": 1}}, SHOWN, [True, False]),
        (BEFORE, "regroup 2/2 localhost/regroup-operator:1", [False, True]),
    ],
)
def test_an_upgrade_that_breaks_a_promise_is_seen(
    after: dict[str, object], shown: str, expected: list[bool]
) -> None:
    assert held(after, shown) == expected
