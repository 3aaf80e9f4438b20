"""What may pass by itself, and what somebody has to change."""

from __future__ import annotations

import errno

import pytest

from regroup_trainer.system.volume_errors import is_away, is_of_file, may_pass


@pytest.mark.parametrize(
    "code",
    [
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
        *(errno.ECONNABORTED, errno.ESHUTDOWN, errno.ENXIO, errno.ENODEV, errno.ECONNREFUSED),
        *(errno.ECONNRESET, errno.ENETUNREACH, errno.EREMOTEIO, errno.ENOTCONN),
    ],
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


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.ENOMEM, errno.ESHUTDOWN])
def test_an_error_that_whole_files_may_give_says_nothing_of_a_file(code: int) -> None:
    assert not is_of_file(OSError(code, "refused"))


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EISDIR, errno.EBADMSG, errno.EUCLEAN])
def test_a_file_that_is_gone_or_damaged_shows_it(code: int) -> None:
    assert is_of_file(OSError(code, "damaged"))
    assert not is_away(OSError(code, "damaged"))
