"""Faults of the volume of a job."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soak.aim import Aim, Missed, Struck
from soak.volume import PROBE_SECONDS, Slowness, SoakVolume

SLOW_PROBES, SLOW_SECONDS = 8, 0.05


def volume_full(aim: Aim) -> Struck:
    """Not a byte fits."""
    filler = aim.job.volume.content / ".filler"
    try:
        _fill(filler)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return Struck(f"a write to the volume failed: {error}", filler.unlink)
        raise
    raise Missed("the volume takes any amount")


def volume_read_only(aim: Aim) -> Struck:
    """For open files too, as where a server exports a file system read-only from now on."""
    volume = aim.job.volume
    volume.refusal.touch()
    try:
        (volume.served / ".probe").write_text("")
    except OSError as error:
        if error.errno == errno.EROFS:
            return Struck(f"a write to the volume failed: {error}", volume.refusal.unlink)
        volume.refusal.unlink()
        raise
    volume.refusal.unlink()
    raise Missed("the volume takes files")


def volume_errors(aim: Aim) -> Struck:
    """All that is asked of it fails, for open files too, as on a damaged disk or a stale mount."""
    volume, number = aim.job.volume, errno.EIO if aim.choice < 0.5 else errno.ESTALE
    volume.refusal.write_text(str(number))
    try:
        (volume.served / ".probe").stat()
    except OSError as error:
        if error.errno == number:
            return Struck(f"a look at the volume failed: {error}", volume.refusal.unlink)
    volume.refusal.unlink()
    raise Missed("the volume gives no error")


def volume_silent(aim: Aim) -> Struck:
    """Whoever uses it waits."""
    volume = aim.job.volume
    volume.stop()
    if volume.answer_seconds() is not None:
        volume.go_on()
        raise Missed("the volume answers")
    return Struck(f"the volume did not answer for {PROBE_SECONDS:.0f} s", volume.go_on)


def volume_slow(aim: Aim) -> Struck:
    """It answers only now and then."""
    slow = Slowness(aim.job.volume)
    answers = list(_answers(aim.job.volume))
    mean = sum(answers) / len(answers)
    if mean < SLOW_SECONDS:
        slow.end()
        raise Missed(f"the volume answers in {mean:.3f} s")
    return Struck(f"the volume answers in {mean:.2f} s on average", slow.end)


def _answers(volume: SoakVolume) -> Iterator[float]:
    for _ in range(SLOW_PROBES):
        yield volume.answer_seconds() or PROBE_SECONDS
        time.sleep(SLOW_SECONDS)  # else all ask within one moment in which it answers


def _fill(filler: Path) -> None:
    """Raises OSError when no byte more fits."""
    with _opened(filler) as file:
        for size in (2**20, 4096, 1):
            block = bytes(size)
            while True:
                try:
                    os.write(file, block)
                except OSError:
                    if size == 1:
                        raise
                    break


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        yield file
    finally:
        os.close(file)
