"""State files: atomic, two kept; a run whose files are damaged goes on to the same bits, or names what it lacks."""

import json
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from shared_components.common.atomic import write_json
from shared_components.federation.messages import FederationError, SiteRefusal
from shared_components.federation.runs import store
from shared_components.federation.runs.state_root import STATE_VARIABLE, state_root
from shared_components.federation.runs.store import DamagedState, RoundFiles, load_tensors, rounds_in, save_tensors
from shared_components.federation.server import state
from tests.federation.conftest import make_job, same


@pytest.fixture
def federate(toy_bundle, federate):
    return federate


def toy(method, **changes):
    return make_job(method, bundle="toy", training={}, **changes)


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})

    monkeypatch.setattr(os, "replace", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"new": 2})
    assert "old" in path.read_text() and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "rounds, keep, left",
    [
        (range(4), 2, [2, 3]),
        ((0, 1, 4), 2, [1, 4]),  # rounds 2 and 3 were missed; round 4 was trained, and is asked again after a resume
        ((0, 2, 1), 2, [0, 1]),  # a run that went back drops its later state
        (range(5), 3, [2, 3, 4]),
    ],
)
def test_the_newest_rounds_are_kept_and_found(tmp_path, rounds, keep, left):
    files = RoundFiles(tmp_path, of="job/run/server", keep=keep)
    for round in rounds:
        files.save(round, {"w": torch.tensor([round])}, {})
    assert files.rounds() == left
    assert files.load()[0] == left[-1] and files.load(before=left[-1])[0] == left[-2]
    assert files.load(before=left[0]) is None


def test_a_simulators_state_lies_beside_its_workspace(tmp_path, monkeypatch):
    monkeypatch.delenv(STATE_VARIABLE, raising=False)
    assert state_root(tmp_path / "ws" / "site-1", simulator=True) == tmp_path / "ws-state"
    assert state_root(tmp_path / "kit", simulator=False) == tmp_path / "kit" / "surgfl"
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "else"))
    assert state_root(tmp_path / "ws" / "site-1", simulator=True) == tmp_path / "else"


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


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


def forget_hash(path):
    """As older versions wrote them."""
    save_file(load_file(path), path, metadata={"surgfl": "{}"})


@pytest.mark.parametrize("damage", [cut_off, flip, lambda path: path.write_bytes(b""), forget_hash])
def test_the_newest_intact_state_is_used_and_that_is_said_and_without_one_the_file_is_named(tmp_path, caplog, damage):
    files = RoundFiles(tmp_path, of="job/run/server")
    for round in range(2):
        files.save(round, {"w": torch.tensor([float(round)])}, {"round": round})
    damage(files.path(1))
    round, tensors, values = files.load()
    assert (round, tensors["w"].item(), values) == (0, 0.0, {"round": 0})
    assert str(files.path(1)) in caplog.text and "going on from round-00000.safetensors" in caplog.text
    damage(files.path(0))
    with pytest.raises(DamagedState, match=r"round-00001\.safetensors .*put an intact copy there"):
        files.load()


@pytest.mark.parametrize("method, damage", [("fedavgm", cut_off), ("fedper", flip)])
def test_a_server_whose_newest_state_is_damaged_goes_on_from_the_one_before_to_the_same_bits(
    federate, tmp_path, caplog, method, damage
):
    """Even where a site has trained the round after the damaged one before all were killed."""
    straight = federate(toy(method, rounds=3), folder=tmp_path / "a").run_leaving(tmp_path / "b", round=2)
    newest = tmp_path / "b" / straight.server.folder.relative_to(tmp_path / "a") / "server" / "round-00001.safetensors"
    damage(newest)
    again = federate(toy(method, rounds=3), folder=tmp_path / "b", resume=True)
    assert again.resumed and again.server.state.round == 1 and str(newest) in caplog.text
    assert same(straight.weights(), again.run().weights())
    assert same(straight.server.state.aggregator, again.server.state.aggregator)
    assert [r["round"] for r in again.server.records if r["kind"] == "aggregation"] == [0, 1, 2]


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_text(path.read_text()[:40]), "is damaged"),
        (lambda path: path.write_text("[1]"), "does not describe a job"),
        (lambda path: path.write_text(json.dumps({"job": None})), "does not describe a job"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is damaged"),
    ],
)
def test_a_run_without_a_description_is_not_begun_anew(federate, damage, words):
    server = federate(toy("fedavg")).run(until=1).server
    damage(server.folder / "run.json")
    with pytest.raises(FederationError, match=rf"run\.json {words}.*put an intact copy there"):
        federate(toy("fedavg"), resume=True)


def test_stray_files_do_not_hinder_a_resume_and_are_left_alone(federate):
    folder = federate(toy("fedper", rounds=3)).run(until=1).server.folder
    strays = [folder.parent / "9.txt"]
    for party in ("server", "site-1"):
        strays += [
            folder / party / name for name in ("round-copy.safetensors", "round-00007 (1).safetensors", "round-1")
        ]
        (folder / party / "round-00009.safetensors").mkdir()
    for stray in strays:
        stray.write_text("mine")
    (folder.parent / "2 notes").mkdir()
    again = federate(toy("fedper", rounds=3), resume=True)
    assert again.resumed and again.run().server.state.round == 3
    assert [rounds_in(folder / party) for party in ("server", "site-1")] == [[1, 2], [0, 1, 2]]
    assert all(stray.read_text() == "mine" for stray in strays)


def test_a_resume_with_fewer_rounds_than_are_done_or_from_an_older_version_is_refused(federate):
    federate(toy("fedavg", rounds=3)).run(until=2)
    with pytest.raises(FederationError, match="has done 2 rounds and the job's 'rounds' is 1; give at least"):
        federate(toy("fedavg", rounds=1), resume=True)
    assert federate(toy("fedavg", rounds=2), resume=True).server.state.round == 2
    server = federate(toy("fedavg", rounds=2)).run(until=1).server
    path = server.folder / "server" / "round-00000.safetensors"
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        header = {key: value for key, value in file.metadata().items() if key != "of"}
    save_file(tensors, path, header)
    with pytest.raises(FederationError, match="does not name its owner: it is damaged, or from an older version"):
        federate(toy("fedavg", rounds=2), resume=True)


@pytest.mark.parametrize("gone", ["round-00000.safetensors", ""])
def test_a_server_whose_states_or_folder_are_gone_does_not_begin_anew(federate, gone):
    server = federate(toy("fedavg")).run(until=1).server
    assert json.loads((server.folder / "run.json").read_text())["rounds_ended"] == 1
    (server.folder / "server" / gone).unlink() if gone else shutil.rmtree(server.folder / "server")
    with pytest.raises(FederationError, match=r"the state after them is gone, server/round-\*\.safetensors"):
        federate(toy("fedavg"), resume=True)
    assert not federate(toy("fedavg")).resumed  # who asks for no resume begins anew


def test_a_state_under_another_rounds_or_runs_name_is_none(federate, caplog, tmp_path):
    server = federate(toy("fedavg", rounds=3)).run(until=2).server
    old, new = (server.folder / "server" / f"round-{n:05d}.safetensors" for n in (0, 1))
    shutil.copy(old, new)
    assert federate(toy("fedavg", rounds=3), resume=True).server.state.round == 1
    assert "round 1'; the state of" in caplog.text and "round 2' is due there" in caplog.text
    first, second = (federate(toy("fedavg", rounds=3)).run(until=1).server for _ in range(2))
    state = "server/round-00000.safetensors"
    shutil.copy(first.folder / state, second.folder / state)
    with pytest.raises(FederationError, match=f"is the state of 'test-fedavg/{first.folder.name}/server, round 1'"):
        federate(toy("fedavg", rounds=3), resume=True)


@pytest.mark.parametrize("other", ["site-1/round-00001", "site-2/round-00000", None])
def test_a_site_whose_newest_state_is_damaged_or_anothers_refuses_and_names_the_file(federate, other):
    folder = federate(toy("fedper", rounds=3)).run(until=2).server.folder
    newest = folder / "site-2" / "round-00001.safetensors"
    shutil.copy(folder / f"{other}.safetensors", newest) if other else flip(newest)
    again = federate(toy("fedper", rounds=3), resume=True).enrol()
    with pytest.raises(SiteRefusal, match=r"site-2: .*damaged, .*site-2/round-00001\.safetensors"):
        again.replies(["site-2"])


def part_state(round):
    """Return a state whose part a changes in every round, and b only in round 3 (number 2)."""
    a, b = torch.full((4,), float(round)), torch.full((2,), float(round >= 2))
    return {"shared": torch.tensor(round)}, {"round": round}, {"a": {"a|w": a}, "b": {"b|w": b, "b|v": b}}


def whole(round):
    tensors, values, parts = part_state(round)
    return round, {**tensors, **parts["a"], **parts["b"]}, values


def test_a_part_is_written_only_if_it_has_changed_and_removed_with_the_last_state_that_names_it(tmp_path):
    files, written = RoundFiles(tmp_path, of="job/run/server"), []
    for round in range(4):
        before = {path for path in (tmp_path / "parts").glob("*")}
        files.save(round, *part_state(round))
        written.append(sorted(path.name[0] for path in {*(tmp_path / "parts").iterdir()} - before))
        loaded = files.load()
        assert (loaded[0], loaded[2]) == (round, {"round": round}) and same(loaded[1], whole(round)[1])
    assert written == [["a", "b"], ["a"], ["a", "b"], ["a"]]
    assert sorted(path.name[0] for path in (tmp_path / "parts").iterdir()) == ["a", "a", "b"]
    files.save(4, {"shared": torch.tensor(4)}, {"round": 4})
    files.save(5, {"shared": torch.tensor(5)}, {"round": 5})
    assert not [*(tmp_path / "parts").iterdir()], "no state names a part any more"


@pytest.mark.parametrize("damaged", ["a", "b"])
def test_a_state_with_a_damaged_or_missing_part_is_skipped_and_the_file_named(tmp_path, caplog, damaged):
    files = RoundFiles(tmp_path, of="job/run/server")
    for round in range(2, 4):
        files.save(round, *part_state(round))
    newest = max((tmp_path / "parts").glob(f"{damaged}-*"), key=lambda path: path.stat().st_mtime_ns)
    flip(newest)
    if damaged == "a":
        assert files.load()[0] == 2 and str(newest) in caplog.text
    else:  # both states have this part
        with pytest.raises(DamagedState, match=newest.name):
            files.load()
    files.save(3, *part_state(3))  # the damaged file is written anew
    assert files.load()[0] == 3
    newest.unlink()
    other = RoundFiles(tmp_path / "other", of="job/other/server")
    other.save(3, *part_state(3))
    shutil.copy(next((tmp_path / "other" / "parts").glob(f"{damaged}-*")), newest)
    with pytest.raises(DamagedState, match="job/other/server"):
        files.read(3)


@pytest.mark.parametrize("last", range(1, 10))
def test_a_kill_between_any_two_changes_of_the_disk_leaves_a_state_of_one_round(tmp_path, monkeypatch, last):
    class Killed(BaseException):
        pass

    done = []

    def counted(change):
        def change_or_die(*args, **options):
            done.append(args[0])
            if len(done) == last:
                raise Killed
            return change(*args, **options)

        return change_or_die

    files = RoundFiles(tmp_path, of="job/run/server")
    for round in range(2):
        files.save(round, *part_state(round))
    with monkeypatch.context() as patched:
        patched.setattr(store, "write_tensors", counted(store.write_tensors))
        patched.setattr(Path, "unlink", counted(Path.unlink))
        try:
            files.save(2, *part_state(2))
            assert last == 9, "all changes of the disk were tried"
        except Killed:
            pass
    round, tensors, values = files.load()
    assert round == (2 if files.path(2).is_file() else 1)
    assert values == {"round": round} and same(tensors, whole(round)[1])
    for round in (2, 3):
        files.save(round, *part_state(round))
        assert same(files.load()[1], whole(round)[1])
    assert len([*(tmp_path / "parts").iterdir()]) == 3 and files.rounds() == [2, 3]


def test_a_server_with_a_file_for_each_site_resumes_to_the_same_bits_also_from_a_state_in_one_file(
    federate, tmp_path, monkeypatch
):
    straight = federate(toy("pfedla", rounds=3), folder=tmp_path / "a").run(until=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b", symlinks=True)
    straight.run()
    monkeypatch.setattr(state, "SPLIT", 0)
    split = federate(toy("pfedla", rounds=3), folder=tmp_path / "b", resume=True)
    assert split.resumed
    split.run(until=2)
    parts = [*(split.server.folder / "server" / "parts").iterdir()]
    assert sorted(path.name.rpartition("-")[0] for path in parts) == ["site-1", "site-2", "site-3"]
    again = federate(toy("pfedla", rounds=3), folder=tmp_path / "b", resume=True)
    assert again.server.state.round == 2 and same(straight.weights(), again.run().weights())
    assert same(straight.server.state.aggregator, again.server.state.aggregator)
