"""What may pass by itself, and what somebody has to change."""

from __future__ import annotations

import errno

import pytest

from regroup_trainer.system.volume_errors import is_away, may_pass


@pytest.mark.parametrize(
    "code",
    [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOSPC, errno.EDQUOT, errno.EROFS],
)
def test_what_a_volume_gives_that_is_full_read_only_or_away_may_pass(code: int) -> None:
    assert may_pass(OSError(code, "refused"))


@pytest.mark.parametrize(
    "code", [errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP]
)
def test_what_is_wrong_with_a_path_or_its_permissions_lasts(code: int) -> None:
    assert not may_pass(OSError(code, "refused"))


def test_only_an_error_that_no_damaged_file_gives_shows_that_a_volume_is_away() -> None:
    assert is_away(OSError(errno.ESTALE, "stale"))
    assert not is_away(OSError(errno.EIO, "damaged, or away"))
