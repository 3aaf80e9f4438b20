"""A missing or old library is one sentence."""

from __future__ import annotations

import pytest

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.integrations.required_library import require


def test_a_library_that_is_new_enough_is_taken() -> None:
    require("torch", "2.13")


def test_a_missing_library_is_named_with_the_command_to_type() -> None:
    with pytest.raises(ConfigurationError) as caught:
        require("a-library-of-nobody", "1.2")
    assert str(caught.value) == (
        "this integration needs a-library-of-nobody 1.2 or newer, and it is not installed: "
        "pip install 'a-library-of-nobody>=1.2'"
    )


def test_an_old_library_is_named_with_its_version() -> None:
    with pytest.raises(ConfigurationError, match=r"needs torch 99\.0 or newer, and 2\.\S+ is inst"):
        require("torch", "99.0")
