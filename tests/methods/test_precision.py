"""Mixed precision of a local step: bfloat16 inside, float32 in all that is kept and sent, off by default."""

import math

import pytest
import torch
from torch import nn

from shared_components.core.method import Context, load_method
from shared_components.core.partition import partition_network
from shared_components.core.training import make_context as context_of
from shared_components.core.training import train_step
from shared_components.networks.bundle_config import Training, load_bundle
from tests.federation.conftest import TINY, make_job, narrow  # noqa: F401
from tests.methods.test_methods import built, make_batch, make_context, sent  # noqa: F401
from tests.methods.toys import SEGMENTATION, Plain

NOT_IN_BF16 = 1 + 2**-8  # between 1 and the next bfloat16, 1 + 2**-7; rounds to even


class Scaled(nn.Module):
    """y = w x with w = 1."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.layer.weight)

    def forward(self, image):
        return self.layer(image)


def step_of_scaled(precision):
    """Take one step of plain gradient descent at rate 1 on the loss y at x = 1 + 2**-8."""
    network, method = Scaled(), load_method("fedavg")
    context = Context(0, Plain(lambda logits, label: logits.float().mean()), torch.Generator(), precision=precision)
    batch = {"image": torch.tensor([[NOT_IN_BF16]]), "label": torch.zeros(1)}
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    losses = train_step(network, optimizer, method, batch, context, partition_network(network, method.partition))
    return losses["segmentation"], network.layer.weight


@pytest.mark.parametrize(("precision", "x"), [("float32", NOT_IN_BF16), ("bf16", 1.0)])
def test_the_forward_pass_rounds_to_bfloat16_and_weights_stay_float32(precision, x):
    loss, weight = step_of_scaled(precision)
    assert loss == x  # w x
    assert weight.item() == 1 - x  # dy/dw = x
    assert weight.dtype == weight.grad.dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_float32_is_the_default_of_bundles_and_contexts():
    assert Training().precision == make_context().precision == "float32"
    assert {load_bundle(bundle).training.precision for bundle in ("pfedsis", "pvt_fpn")} == {"float32"}
    assert context_of(Training(precision="bf16"), SEGMENTATION, round=0, site=0).precision == "bf16"


@pytest.mark.parametrize("precision", ["fp16", "BF16", None])
def test_an_unknown_precision_is_named(precision):
    with pytest.raises(ValueError, match=f"precision is {precision!r}; use one of float32, bf16"):
        load_bundle("pvt_fpn", {"precision": precision})


def test_every_methods_gradients_point_the_same_way_in_both_precisions(built):  # noqa: F811
    method, network, partition = built
    network.train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    found = {}
    for precision in ("float32", "bf16"):
        network.load_state_dict(before)
        torch.manual_seed(0)
        context = make_context(received=sent(network, partition), precision=precision)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
        losses = train_step(network, optimizer, method, make_batch(), context, partition)
        assert all(math.isfinite(value) for value in losses.values())
        found[precision] = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    assert found["float32"].keys() == found["bf16"].keys()
    assert all(g.dtype == torch.float32 and torch.isfinite(g).all() for g in found["bf16"].values())
    a, b = (torch.cat([g.flatten() for g in gradients.values()]) for gradients in found.values())
    assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 0.97
    assert not torch.equal(a, b)


@pytest.mark.slow
def test_a_federation_of_pfedsis_in_bfloat16_is_finite_and_sends_float32(federate, tmp_path):
    jobs = {p: make_job(training={**TINY, "precision": p}) for p in ("float32", "bf16")}
    plain, mixed = (federate(job, folder=tmp_path / precision) for precision, job in jobs.items())
    plain.enrol()
    mixed.enrol()
    losses = []
    for _ in range(2):
        replies = mixed.replies()
        groups = [g for reply in replies.values() for g in (reply.pieces, *reply.groups.values())]
        tensors = [value for group in groups for value in group.values()]
        assert {value.dtype for value in tensors} == {torch.float32}
        assert all(torch.isfinite(value).all() for value in tensors)
        losses.append(replies["site-1"].header["loss"])
        assert all(math.isfinite(value) for value in losses[-1].values())
        mixed.send(replies)
    assert mixed.server.state.round == 2
    assert losses[0] != plain.replies(names=["site-1"])["site-1"].header["loss"]
