"""Answers with tensors in files: the request to FLARE, and the reading of such an answer."""

from types import SimpleNamespace

import torch
from nvflare.apis.shareable import Shareable
from nvflare.app_opt.pt.lazy_tensor_dict import LazyTensorDict
from safetensors.torch import save_file

from shared_components.federation.messages import Message
from shared_components.federation.messages.stored import StoredPieces
from shared_components.flare import wire
from shared_components.flare.exchange import read_reply
from shared_components.flare.wire import ROOT, WANTED, receive_in_files, server_cell


class Cell:
    """Hold FLARE's settings of a cell."""

    def __init__(self):
        self.context = {}

    def update_fobs_context(self, props):
        self.context |= props

    def get_fobs_context(self):
        return dict(self.context)


def test_the_jobs_own_cell_writes_below_a_folder_that_is_emptied_once(tmp_path):
    folder, cell = tmp_path / "server" / "received", Cell()
    folder.mkdir(parents=True)
    (folder / "of-a-killed-server").touch()
    engine = SimpleNamespace(server=SimpleNamespace(job_cell=cell, cell=Cell()))
    receive_in_files(server_cell(engine), folder)
    assert cell.context == {ROOT: str(folder), WANTED: True} and not list(folder.iterdir())
    (folder / "of-this-round").touch()
    receive_in_files(server_cell(engine), None)
    receive_in_files(server_cell(engine), folder)
    assert cell.context == {ROOT: str(folder), WANTED: True} and len(list(folder.iterdir())) == 1
    assert engine.server.cell.context == {}


def test_in_production_the_servers_cell_is_the_jobs_and_without_a_cell_nothing_happens(tmp_path):
    cell = Cell()
    receive_in_files(server_cell(SimpleNamespace(server=SimpleNamespace(cell=cell))), None)
    assert cell.context == {WANTED: False}
    receive_in_files(server_cell(SimpleNamespace()), tmp_path / "received")
    assert not (tmp_path / "received").exists()


def in_files(folder, **tensors):
    """Return FLARE's references to tensors in files, one file each."""
    folder.mkdir()
    for name, value in tensors.items():
        save_file({"T0": value}, folder / name)
    lazy = LazyTensorDict({name: (str(folder / name), "T0") for name in tensors}, str(folder))
    return {name: lazy.make_lazy_ref(name) for name in tensors}


def test_an_answer_in_files_is_checked_and_read_tensor_by_tensor(tmp_path):
    given = in_files(tmp_path / "a", w=torch.arange(3.0))
    shareable = wire.to_shareable(Message({"round": 0, "samples": 2}, {**given, "steps": torch.tensor(3)}))
    reply = read_reply(shareable, "round")
    assert isinstance(reply.pieces, StoredPieces) and reply.header["samples"] == 2
    assert reply.pieces["w"].tolist() == [0, 1, 2] and reply.pieces["steps"].item() == 3
    del given, shareable, reply
    assert not (tmp_path / "a").exists()


def test_extras_and_whole_models_in_files_stay_there_until_they_are_read(tmp_path):
    for task in ("round", "finish"):
        group = in_files(tmp_path / task, w=torch.ones(2))
        reply = read_reply(wire.to_shareable(Message({"round": 0}, {}, {"model": group})), task)
        assert isinstance(reply.groups["model"], StoredPieces) and reply.groups["model"]["w"].tolist() == [1, 1]


def test_a_file_without_a_tensor_or_an_answer_without_a_message_costs_its_site_the_round(tmp_path):
    given = in_files(tmp_path / "a", w=torch.arange(3.0))
    (tmp_path / "a" / "w").write_bytes(b"no tensor")
    assert "its answer cannot be read" in read_reply(wire.to_shareable(Message({"round": 0}, given)), "round")
    assert "its answer cannot be read" in read_reply(Shareable(), "round")
