"""What a run keeps is damaged, gone or in a stray's company: it goes on to the same bits, or says what it lacks."""

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from shared_components.federation.messages import FederationError, SiteRefusal
from tests.federation.conftest import make_job

pytestmark = pytest.mark.usefixtures("toy_bundle")


def toy(method, **changes):
    return make_job(method, bundle="toy", training={}, **changes)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def cut_off(path):
    path.write_bytes(path.read_bytes()[:1000])


def flip_a_bit(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


@pytest.mark.parametrize("method, damage", [("fedavgm", cut_off), ("fedper", flip_a_bit)])
def test_a_server_whose_newest_state_is_damaged_goes_on_from_the_one_before_to_the_same_bits(
    federate, tmp_path, caplog, method, damage
):
    """Even where a site has trained the round after the damaged one before all were killed."""
    straight = federate(toy(method, rounds=3), folder=tmp_path / "a").run()
    broken = federate(toy(method, rounds=3), folder=tmp_path / "b").run(until=2)
    broken.replies(names=["site-2"])
    newest = broken.server.folder / "server" / "round-00001.safetensors"
    damage(newest)
    again = federate(toy(method, rounds=3), folder=tmp_path / "b", resume=True)
    assert again.resumed and again.server.state.round == 1 and str(newest) in caplog.text
    assert same(straight.weights(), again.run().weights())
    assert same(straight.server.state.aggregator, again.server.state.aggregator)
    records = [record["round"] for record in again.server.records if record["kind"] == "aggregation"]
    assert records == [0, 1, 2]


def test_a_server_whose_states_are_all_damaged_says_so(federate):
    server = federate(toy("fedavg", rounds=3)).run(until=2).server
    for path in (server.folder / "server").glob("round-*"):
        cut_off(path)
    with pytest.raises(FederationError, match=r"server/round-00001\.safetensors cannot be read"):
        federate(toy("fedavg", rounds=3), resume=True)


def test_a_server_whose_states_are_gone_does_not_begin_anew(federate):
    server = federate(toy("fedavg")).run(until=1).server
    (server.folder / "server" / "round-00000.safetensors").unlink()
    with pytest.raises(FederationError, match=r"the state after them is gone, server/round-\*\.safetensors"):
        federate(toy("fedavg"), resume=True)


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_text(path.read_text()[:40]), "is damaged"),
        (lambda path: path.write_text("[1]"), "says nothing of a job"),
        (lambda path: path.write_text(json.dumps({"job": None})), "says nothing of a job"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is damaged"),
    ],
)
def test_a_run_without_a_description_is_not_begun_anew(federate, damage, words):
    server = federate(toy("fedavg")).run(until=1).server
    damage(server.folder / "run.json")
    with pytest.raises(FederationError, match=rf"run\.json {words}.*put an intact copy there"):
        federate(toy("fedavg"), resume=True)


def test_a_site_whose_newest_state_is_damaged_refuses_and_names_the_file(federate):
    broken = federate(toy("fedper", rounds=3)).run(until=2)
    flip_a_bit(broken.server.folder / "site-2" / "round-00001.safetensors")
    again = federate(toy("fedper", rounds=3), resume=True).enrol()
    with pytest.raises(SiteRefusal, match=r"site-2: .*damaged, .*site-2/round-00001\.safetensors"):
        again.replies(["site-2"])


def test_stray_files_do_not_hinder_a_resume(federate):
    folder = federate(toy("fedavg")).run(until=1).server.folder
    for party in ("server", "site-1"):
        (folder / party / "round-copy.safetensors").write_text("mine")
        (folder / party / "round-00009.safetensors").mkdir()
    (folder.parent / "2 notes").mkdir()
    (folder.parent / "9.txt").write_text("mine")
    again = federate(toy("fedavg"), resume=True)
    assert again.resumed and again.run().server.state.round == 2


def test_a_resume_with_fewer_rounds_than_are_done_is_refused(federate):
    federate(toy("fedavg", rounds=3)).run(until=2)
    with pytest.raises(FederationError, match="has done 2 rounds and the job's 'rounds' is 1; give at least"):
        federate(toy("fedavg", rounds=1), resume=True)
    assert federate(toy("fedavg", rounds=2), resume=True).server.state.round == 2


# ---- a state of something else


def test_a_server_whose_folder_is_gone_does_not_begin_anew(federate):
    server = federate(toy("fedavg")).run(until=1).server
    assert json.loads((server.folder / "run.json").read_text())["rounds_ended"] == 1
    shutil.rmtree(server.folder / "server")
    with pytest.raises(FederationError, match=r"the state after them is gone, server/round-\*\.safetensors"):
        federate(toy("fedavg"), resume=True)
    assert not federate(toy("fedavg")).resumed  # who asks for no resume begins anew


def test_an_older_state_under_a_newer_name_is_none(federate, caplog):
    server = federate(toy("fedavg", rounds=3)).run(until=2).server
    old, new = (server.folder / "server" / f"round-{n:05d}.safetensors" for n in (0, 1))
    shutil.copy(old, new)
    assert federate(toy("fedavg", rounds=3), resume=True).server.state.round == 1
    assert "round 1', and that of" in caplog.text and "round 2' is due there" in caplog.text


@pytest.mark.parametrize("other", ["site-1/round-00001", "site-2/round-00000"])
def test_another_sites_or_rounds_state_is_not_a_sites_own(federate, other):
    broken = federate(toy("fedper", rounds=3)).run(until=2)
    folder = broken.server.folder
    shutil.copy(folder / f"{other}.safetensors", folder / "site-2" / "round-00001.safetensors")
    again = federate(toy("fedper", rounds=3), resume=True).enrol()
    with pytest.raises(SiteRefusal, match=r"site-2: .*damaged, .*site-2/round-00001\.safetensors"):
        again.replies(["site-2"])


def test_another_runs_state_is_not_this_ones(federate, tmp_path):
    first, second = (federate(toy("fedavg", rounds=3)).run(until=1).server for _ in range(2))
    state = "server/round-00000.safetensors"
    shutil.copy(first.folder / state, second.folder / state)
    with pytest.raises(FederationError, match=f"is the state of 'test-fedavg/{first.folder.name}/server, round 1'"):
        federate(toy("fedavg", rounds=3), resume=True)


def test_a_state_of_an_older_version_says_so(federate):
    server = federate(toy("fedavg", rounds=2)).run(until=1).server
    path = server.folder / "server" / "round-00000.safetensors"
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        header = {key: value for key, value in file.metadata().items() if key != "of"}
    save_file(tensors, path, header)
    with pytest.raises(FederationError, match="does not say whose state it is: it is damaged, or of an older version"):
        federate(toy("fedavg", rounds=2), resume=True)
