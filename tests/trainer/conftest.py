"""A warm template for the tests that train."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ranks import Template


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """Forks real ranks; shared, since only its start is slow."""
    scratch = tmp_path_factory.mktemp("ranks", numbered=True)
    template = Template(scratch)
    yield template
    template.close()
