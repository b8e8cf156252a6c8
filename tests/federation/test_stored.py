"""Updates that wait on the disk: the same bits as in memory, whatever a method makes of them, and nothing is left."""

import pytest
import torch
from safetensors.torch import load_file

from shared_components.core.method import StatelessStart, load_method
from shared_components.federation.in_process import answer, run_together
from shared_components.federation.messages import Message, stored
from shared_components.federation.messages.stored import Inbox, StoredPieces
from shared_components.federation.runs.run_folder import server_files
from tests.federation.conftest import SITES, make_job, same


def message(**tensors):
    return Message({}, tensors)


def test_a_round_stays_in_memory_up_to_a_bound_and_goes_to_the_disk_beyond(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "HELD", 20)
    inbox, given = Inbox(tmp_path / "updates"), {"w": torch.arange(4.0), "steps": torch.tensor(3)}
    first, second = message(w=given["w"]), message(**given)
    assert inbox.keep("round", "site-1", first).pieces is first.pieces and not (tmp_path / "updates").exists()
    kept = inbox.keep("round", "site-2", second).pieces
    assert isinstance(kept, StoredPieces) and list(kept) == list(given) and len(kept) == 2 and same(dict(kept), given)
    assert [path.name for path in (tmp_path / "updates").iterdir()] == ["site-2.safetensors"]
    inbox.empty()
    assert not (tmp_path / "updates").exists()
    assert inbox.keep("round", "site-1", first).pieces is first.pieces


def test_a_read_tensor_outlives_its_file_and_only_whole_models_of_the_finish_are_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "HELD", 0)
    inbox = Inbox(tmp_path / "updates")
    value = inbox.keep("round", "site-1", message(w=torch.arange(9.0))).pieces["w"]
    inbox.empty()
    assert value.tolist() == list(range(9))
    inbox, reply = Inbox(tmp_path / "updates"), Message({}, {}, {"model": {"w": torch.ones(3)}})
    assert isinstance(inbox.keep("finish", "site-1", reply).groups["model"], StoredPieces)
    assert inbox.keep("round", "site-1", reply).groups["model"] is reply.groups["model"]


METHODS = [
    ("fedavg", {"swa": {"start": 0}}), ("fedmedian", {}), ("krum", {}), ("norm_bound", {}), ("qfedavg", {}),
    ("mat_fl", {}), ("fedhca2", {}), ("centralised", {}),
    pytest.param("feddp", {"fine_tune_from": 1}, marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize("method, arguments", METHODS)
def test_stored_updates_give_the_bits_of_those_in_memory(job_on_toy, scenes, tmp_path, monkeypatch, method, arguments):
    stateless = isinstance(load_method(method, **arguments).server.aggregator, StatelessStart)
    job = job_on_toy(method, arguments=arguments, rounds=1 if stateless else 2)  # each of its rounds is the first
    sites = dict(zip(SITES, scenes, strict=True))

    def run(folder):
        server = run_together(job, sites, tmp_path / folder)
        _, tensors, _ = server_files(server.folder).load()
        given = load_file(server.folder / "server" / "model.safetensors")
        return {**tensors, **{f"outsider/{name}": value for name, value in given.items()}}

    in_memory = run("memory")
    monkeypatch.setattr(stored, "HELD", 0)
    on_disk = run("disk")
    assert same(in_memory, on_disk)
    assert not list((tmp_path / "disk").rglob("updates"))


def test_what_a_killed_server_has_left_is_removed_when_its_round_begins_again(federate, toy_bundle, monkeypatch):
    monkeypatch.setattr(stored, "HELD", 0)
    first = federate(make_job("fedavg")).enrol()
    answer(first.asked, first.sites, keep=first.server.keep)
    assert len(list((first.server.folder / "server" / "updates").iterdir())) == 3
    again = federate(make_job("fedavg"), resume=True).enrol()
    assert not (again.server.folder / "server" / "updates").exists()
