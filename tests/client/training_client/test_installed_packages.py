"""What a local job says of packages that are installed, are not, or have another version."""

from __future__ import annotations

from pathlib import Path

import pytest

from regroup import TrainingClient, TrainingClientError
from regroup.training_client.installed_packages import require_installed


def install(folder: Path, name: str, version: str) -> None:
    """What a Python knows of a package."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "wanted_one", "8.2")
    install(tmp_path, "young", "9.0rc1")
    install(tmp_path, "homemade", "of-tuesday")


@pytest.mark.parametrize(
    "package",
    [
        "wanted-one",
        "Wanted.One",
        "wanted-one>=8",
        " wanted_one ~= 8.1 ",
        "wanted-one[fast]<9,!=8.1",
        "young>=8",
        "young>=9.0rc1",
        "homemade",
        "nobody-has-this>=9; python_version < '3'",
        "wanted-one @ https://packages.local/wanted_one-8.2-py3-none-any.whl",
    ],
)
def test_a_package_that_pip_would_leave_as_it_is_is_enough(package: str) -> None:
    require_installed([package])


@pytest.mark.parametrize(
    ("package", "why"),
    [
        ("wanted-one>=9", "wanted-one>=9 is wanted, wanted-one 8.2 is installed, and a local job"),
        ("wanted-one==8.2.1", "wanted-one==8.2.1 is wanted, wanted-one 8.2 is installed, and"),
        ("young>=9", "young>=9 is wanted, young 9.0rc1 is installed, and"),
        ("homemade>=1", "homemade>=1 is wanted, homemade of-tuesday is installed, and"),
        ("nobody-has-this", "nobody-has-this is not installed, and a local job uses this Python"),
        ("nobody-has-this>=1", "nobody-has-this>=1 is not installed, and a local job uses this"),
    ],
)
def test_what_is_missing_or_too_old_is_named_with_what_to_type(package: str, why: str) -> None:
    with pytest.raises(TrainingClientError) as raised:
        require_installed(["wanted-one", package])
    assert str(raised.value).startswith(f"packages: {why}")
    assert str(raised.value).endswith(f"this Python: type pip install '{package}'")


@pytest.mark.parametrize("package", ["git+https://h/x.git", "./folder", "wanted-one>=nine", ""])
def test_what_has_no_name_and_version_cannot_be_looked_up(package: str) -> None:
    with pytest.raises(TrainingClientError, match="cannot be looked up in this Python: give name"):
        require_installed([package])


def test_only_a_version_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    require_installed(["wanted-one"])
    typed = r"packaging cannot be found: type pip install '\.\[client\]' in a clone of Regroup"
    with pytest.raises(TrainingClientError, match=rf"wanted-one>=8: to compare versions, {typed}"):
        require_installed(["wanted-one>=8"])


def test_a_local_job_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    def train() -> None:
        """Never called."""

    with (
        TrainingClient("local", directory=tmp_path / "runs") as client,
        pytest.raises(TrainingClientError, match=r"wanted-one 8\.2 is installed"),
    ):
        client.train(train, packages=["wanted-one>=9"])
    assert not (tmp_path / "runs").exists()
