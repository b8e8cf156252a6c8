"""State files: atomic, two kept, found again."""

import os

import pytest
import torch

from shared_components.atomic import write_json
from shared_components.federation import store
from shared_components.federation.store import RoundFiles, load_tensors, save_tensors, state_root


def test_tensors_and_values_come_back(tmp_path):
    save_tensors(tmp_path / "a.safetensors", {"w": torch.arange(3)}, {"best": {"dice": 0.5}})
    tensors, values = load_tensors(tmp_path / "a.safetensors")
    assert tensors["w"].tolist() == [0, 1, 2] and values == {"best": {"dice": 0.5}}


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"new": 2})
    assert "old" in path.read_text() and len(list(tmp_path.iterdir())) == 1


def test_the_newest_two_rounds_are_kept(tmp_path):
    files = RoundFiles(tmp_path)
    for round in range(4):
        files.save(round, {"w": torch.tensor([round])}, {})
    assert files.rounds() == [2, 3]
    assert files.load()[0] == 3 and files.load(before=3)[0] == 2 and files.load(before=1) is None


def test_a_round_that_is_done_again_finds_the_state_before_it_however_old(tmp_path):
    """Rounds 2 and 3 were missed; round 4 was trained, and is asked again after a resume."""
    files = RoundFiles(tmp_path)
    for round in (0, 1, 4):
        files.save(round, {"w": torch.tensor([round])}, {})
    assert files.rounds() == [1, 4]
    assert files.load(before=4)[0] == 1


def test_a_later_state_of_a_run_that_went_back_is_dropped(tmp_path):
    files = RoundFiles(tmp_path)
    for round in (0, 2, 1):
        files.save(round, {"w": torch.tensor([round])}, {})
    assert files.rounds() == [0, 1]


def test_a_simulators_state_lies_beside_its_workspace(tmp_path, monkeypatch):
    monkeypatch.delenv(store.STATE_VARIABLE, raising=False)
    assert state_root(tmp_path / "ws" / "site-1", simulator=True) == tmp_path / "ws-state"
    assert state_root(tmp_path / "kit", simulator=False) == tmp_path / "kit" / "surgfl"
    monkeypatch.setenv(store.STATE_VARIABLE, str(tmp_path / "else"))
    assert state_root(tmp_path / "ws" / "site-1", simulator=True) == tmp_path / "else"
