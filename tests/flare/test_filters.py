"""What may leave a site: declared pieces in their shapes, and nothing else."""

import pytest
import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from shared_components.bundle_config import build_network, load_bundle
from shared_components.federation.messages import Job, Message
from shared_components.flare import wire
from shared_components.flare.filters import DeclaredPiecesOnly, declared_pieces
from shared_components.method import load_method
from shared_components.partition import Role, cut, partition_network

from ..federation.conftest import make_job

CLASSES = ["background", "shaft", "wrist", "clasper"]
LOCAL_DECODER = {"ape": False, "sensitivity_images": 2}  # PFedSIS's personal parts stay at home


def honest(job: Job) -> Message:
    """Return what a site sends after a round, without the training."""
    method = load_method(job.method, **job.arguments)
    network = build_network(load_bundle(job.bundle).network, out_channels=len(CLASSES))
    partition, state = partition_network(network, method.rule), network.state_dict()
    tensors = {"pieces": cut(state, partition, Role.GLOBAL, Role.MIXED)}
    if method.measure:
        tensors["sensitivity"] = {n: v.abs() for n, v in cut(state, partition, Role.GLOBAL).items()}
    return Message({"job": job.to_json(), "classes": CLASSES, "round": 0}, tensors)


def sent(message: Message) -> Message:
    return wire.from_wire(DeclaredPiecesOnly().process(wire.to_shareable(message), None))


@pytest.mark.parametrize(
    "job", [make_job("fedavg"), make_job("pfedsis"), make_job("pfedsis", arguments=LOCAL_DECODER)]
)
def test_honest_updates_pass_unchanged(job):
    message = honest(job)
    passed = sent(message)
    assert passed.header == message.header and passed.tensors.keys() == message.tensors.keys()
    for group, pieces in message.tensors.items():
        assert all(torch.equal(value, passed.tensors[group][name]) for name, value in pieces.items())


def test_a_local_piece_is_blocked():
    message = honest(make_job("pfedsis", arguments=LOCAL_DECODER))
    message.pieces["decoder_personal.lateral.0.weight"] = torch.zeros(256, 128, 1, 1)
    with pytest.raises(ValueError, match=r"decoder_personal.lateral.0.weight .* is not a declared piece"):
        sent(message)


def test_the_personal_half_of_a_query_is_blocked_where_it_is_local():
    """Rows 0:16 of the first block's query are GLOBAL, rows 16:32 the site's own (GPD, half of 32 rows)."""
    message = honest(make_job("pfedsis", arguments=LOCAL_DECODER))
    name = "encoder.block1.0.attn.q.weight"
    assert f"{name}[0:16]" in message.pieces and f"{name}[16:32]" not in message.pieces
    message.pieces[f"{name}[16:32]"] = torch.zeros(16, 32)
    with pytest.raises(ValueError, match=r"\[16:32\]"):
        sent(message)


@pytest.mark.parametrize(
    "group, name, value",
    [
        ("pieces", "patient", torch.zeros(3)),
        ("pieces", "head_global.bias", torch.zeros(5)),
        ("images", "frame_000", torch.zeros(3, 32, 64)),
        ("images", "head_global.bias", torch.zeros(2, 3, 32, 64)),
    ],
)
def test_undeclared_names_other_shapes_and_images_are_blocked(group, name, value):
    message = honest(make_job("fedavg"))
    message.tensors.setdefault(group, {})[name] = value
    with pytest.raises(ValueError, match=f"{group} (is nothing|{name})"):
        sent(message)


def test_a_declared_extra_must_have_the_shapes_of_the_shared_pieces():
    message = honest(make_job("pfedsis"))
    message.tensors["sensitivity"]["head_global.bias"] = torch.zeros(2, 3, 32, 64)
    with pytest.raises(ValueError, match=r"head_global\.bias is \(2, 3, 32, 64\)"):
        sent(message)


def test_a_message_that_is_not_ours_is_blocked():
    with pytest.raises(ValueError):
        DeclaredPiecesOnly().process(make_reply(ReturnCode.OK), None)


def test_refusals_and_profiles_without_tensors_pass():
    refusal = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    assert DeclaredPiecesOnly().process(refusal, None) is refusal
    assert sent(Message({"samples": 3})).header == {"samples": 3}


def test_shapes_need_no_memory_for_weights():
    pieces = declared_pieces(make_job("pfedsis"), CLASSES)
    assert tuple(pieces["head_personal.weight"][0].shape) == (4, 128, 1, 1)
    assert tuple(pieces["encoder.block1.0.attn.q.weight[0:16]"][0].shape) == (16, 32)
    assert all(value.is_meta for value, _ in pieces.values())
