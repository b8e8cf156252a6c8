"""State files: atomic, two kept, found again."""

import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared_components.common.atomic import write_json
from shared_components.federation import store
from shared_components.federation.store import DamagedState, RoundFiles, load_tensors, save_tensors, state_root


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
    files = RoundFiles(tmp_path, of="job/run/server")
    for round in range(4):
        files.save(round, {"w": torch.tensor([round])}, {})
    assert files.rounds() == [2, 3]
    assert files.load()[0] == 3 and files.load(before=3)[0] == 2 and files.load(before=1) is None


def test_a_round_that_is_done_again_finds_the_state_before_it_however_old(tmp_path):
    """Rounds 2 and 3 were missed; round 4 was trained, and is asked again after a resume."""
    files = RoundFiles(tmp_path, of="job/run/server")
    for round in (0, 1, 4):
        files.save(round, {"w": torch.tensor([round])}, {})
    assert files.rounds() == [1, 4]
    assert files.load(before=4)[0] == 1


def test_a_later_state_of_a_run_that_went_back_is_dropped(tmp_path):
    files = RoundFiles(tmp_path, of="job/run/server")
    for round in (0, 2, 1):
        files.save(round, {"w": torch.tensor([round])}, {})
    assert files.rounds() == [0, 1]


def test_a_simulators_state_lies_beside_its_workspace(tmp_path, monkeypatch):
    monkeypatch.delenv(store.STATE_VARIABLE, raising=False)
    assert state_root(tmp_path / "ws" / "site-1", simulator=True) == tmp_path / "ws-state"
    assert state_root(tmp_path / "kit", simulator=False) == tmp_path / "kit" / "surgfl"
    monkeypatch.setenv(store.STATE_VARIABLE, str(tmp_path / "else"))
    assert state_root(tmp_path / "ws" / "site-1", simulator=True) == tmp_path / "else"


# ---- damage


def test_no_byte_of_a_state_can_change_without_being_noticed(tmp_path):
    """Every byte in turn has one bit flipped: the file is refused, or (spaces that pad) reads as it was written."""
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"w": torch.arange(3.0), "n": torch.tensor(7)}, {"best": {"dice": 0.5}})
    whole, noticed = path.read_bytes(), 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            tensors, values = load_tensors(path)
        except DamagedState as error:
            assert str(path) in str(error)
            noticed += 1
        else:
            assert tensors["w"].tolist() == [0, 1, 2] and tensors["n"] == 7 and values == {"best": {"dice": 0.5}}
    assert noticed > 0.9 * len(whole)


def rounds_of(folder, count=2):
    files = RoundFiles(folder, of="job/run/server")
    for round in range(count):
        files.save(round, {"w": torch.tensor([float(round)])}, {"round": round})
    return files


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


def empty(path):
    path.write_bytes(b"")


def forget_hash(path):
    """As older versions wrote them."""
    save_file(load_file(path), path, metadata={"surgfl": "{}"})


@pytest.mark.parametrize("damage", [cut_off, flip, empty, forget_hash])
def test_the_newest_intact_state_is_used_and_that_is_said(tmp_path, caplog, damage):
    files = rounds_of(tmp_path)
    damage(files.path(1))
    round, tensors, values = files.load()
    assert (round, tensors["w"].item(), values) == (0, 0.0, {"round": 0})
    assert str(files.path(1)) in caplog.text and "going on from round-00000.safetensors" in caplog.text


@pytest.mark.parametrize("damage", [cut_off, flip, empty, forget_hash])
def test_a_run_whose_states_are_all_damaged_is_refused_by_the_files_name(tmp_path, damage):
    files = rounds_of(tmp_path)
    for round in (0, 1):
        damage(files.path(round))
    with pytest.raises(DamagedState, match=r"round-00001\.safetensors .*put an intact copy there"):
        files.load()


def test_stray_files_beside_the_states_are_left_alone(tmp_path):
    files = rounds_of(tmp_path)
    strays = [tmp_path / name for name in ("round-copy.safetensors", "round-00007 (1).safetensors", "round-1")]
    for stray in strays:
        stray.write_bytes(b"mine")
    (tmp_path / "round-00009.safetensors").mkdir()
    assert files.rounds() == [0, 1] and files.load()[0] == 1
    files.save(2, {}, {})
    assert files.rounds() == [1, 2] and all(stray.is_file() for stray in strays)


def test_as_many_states_are_kept_as_asked_for(tmp_path):
    files = RoundFiles(tmp_path, of="job/run/site-1", keep=3)
    for round in range(5):
        files.save(round, {}, {})
    assert files.rounds() == [2, 3, 4]
