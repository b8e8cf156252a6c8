"""Messages survive FLARE's serialiser bit by bit, and no pickle is involved."""

import pickle

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.fuel.utils import fobs

from shared_components.federation.messages import Message, total_bytes
from shared_components.flare import wire


@pytest.fixture(autouse=True)
def registered():
    wire.register()


HEADER = {"round": 3, "classes": ["background", "shaft"], "style": [[0.1, 0.2, 0.3]], "none": None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_and_values_come_back(dtype):
    rows = torch.arange(12).reshape(4, 3).to(dtype)[1:3]  # a view, as pieces are
    message = Message(HEADER, {"q.weight[1:3]": rows}, {"sensitivity": {"b": torch.zeros(())}})
    found = wire.from_wire(fobs.loads(fobs.dumps(wire.to_shareable(message))))
    assert found.header == HEADER and found.groups.keys() == {"sensitivity"}
    assert found.pieces["q.weight[1:3]"].dtype == dtype
    assert torch.equal(found.pieces["q.weight[1:3]"], rows)
    assert found.groups["sensitivity"]["b"].shape == ()


def test_a_view_sends_its_own_rows_only():
    whole = torch.zeros(1000, 100)
    sent = fobs.dumps(wire.to_shareable(Message({}, {"w[0:10]": whole[:10]})))
    assert len(sent) < 2 * 10 * 100 * 4


def test_numbers_keep_every_bit():
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45, 0.1])
    found = wire.from_wire(fobs.loads(fobs.dumps(wire.to_shareable(Message({}, {"w": odd})))))
    assert found.pieces["w"].view(torch.int32).tolist() == odd.view(torch.int32).tolist()


def test_nothing_is_pickled(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("pickle was used")

    for name in ("dumps", "loads", "dump", "load", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    message = Message(HEADER, {"w": torch.ones(4)})
    data = fobs.dumps(wire.to_shareable(message))
    assert torch.equal(wire.from_wire(fobs.loads(data)).pieces["w"], torch.ones(4))


def test_bytes_are_those_of_the_numbers():
    assert total_bytes({"w": torch.ones(4), "v": torch.ones(2).half()}) == 16 + 4


def test_a_group_may_have_the_name_of_the_pieces():
    message = Message({}, {"w": torch.ones(1)}, {"pieces": {"w": torch.zeros(1)}})
    found = wire.from_wire(fobs.loads(fobs.dumps(wire.to_shareable(message))))
    assert found.pieces["w"] == 1 and found.groups["pieces"]["w"] == 0


def test_a_group_without_tensors_is_left_out():
    found = wire.from_wire(wire.to_shareable(Message({}, {}, {"sensitivity": {}})))
    assert found.empty and found.groups == {}


def test_tensors_under_an_unknown_name_are_refused():
    odd = DXO(DataKind.WEIGHTS, data={"w": torch.ones(1)})
    collection = DXO(DataKind.COLLECTION, data={"weights": odd}, meta={wire.HEADER: "{}"})
    with pytest.raises(ValueError, match="'weights', which is neither pieces nor a group"):
        wire.from_wire(collection.to_shareable())


def test_objects_of_other_jobs_are_refused():
    with pytest.raises(ValueError, match="no message of this job"):
        wire.from_wire(DXO(DataKind.WEIGHTS, data={"w": torch.ones(1)}).to_shareable())
