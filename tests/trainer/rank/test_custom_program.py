"""What the ranks of a custom loop learn of their data sets from each other."""

from __future__ import annotations

import pytest
import torch

from regroup_trainer.data.data_set_fingerprint import VARY, DataSetFingerprint
from regroup_trainer.errors import ConfigurationError, DataError
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.rank import custom_program
from regroup_trainer.rank.custom_program import DataSet

KIND = "Points of 50"
ALONE = DataSetFingerprint(KIND, "a" * 16)
PROVEN = DataSetFingerprint(KIND, "b" * 16, is_proven=True)


def agreed(
    own: DataSetFingerprint, other: DataSetFingerprint, monkeypatch: pytest.MonkeyPatch
) -> DataSet:
    """What rank 0 knows after it has entered two generations with a rank of another worker."""
    monkeypatch.setattr(custom_program, "all_gather", lambda value: [value, ("w1", other)])
    data = DataSet(own)
    for _ in range(2):
        data.agree(GenerationGroup(0, 2, 0, torch.device("cpu")), "w0")
    return data


def test_samples_that_vary_are_named_once_whichever_rank_has_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    varying = DataSetFingerprint(KIND, VARY)
    for own, other in ((varying, varying), (ALONE, varying), (varying, ALONE)):
        assert agreed(own, other, monkeypatch).fingerprint == varying
        assert capsys.readouterr().err.count("the samples of Points of 50 are not the same") == 1


def test_a_new_rank_with_other_samples_than_those_that_have_trained_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DataError, match="on those that have trained: give all ranks the same data"):
        agreed(ALONE, PROVEN, monkeypatch)
    assert agreed(PROVEN, ALONE, monkeypatch).fingerprint == PROVEN, "those go on"
    assert agreed(DataSetFingerprint(KIND), PROVEN, monkeypatch).fingerprint == PROVEN


def test_data_sets_of_other_sizes_end_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="Points of 50 on rank 0, Points of 60 on rank 1"):
        agreed(ALONE, DataSetFingerprint("Points of 60"), monkeypatch)


def test_what_a_former_process_had_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    data = DataSet(ALONE)
    data.continue_from(str(ALONE))
    assert data.fingerprint.is_proven
    data.continue_from(str(PROVEN))
    assert data.fingerprint.samples == ALONE.samples, "somebody has accepted the other samples"
