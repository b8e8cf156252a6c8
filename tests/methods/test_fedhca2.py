"""FedHCA2: both rules in plain loops, what alpha and beta learn, two tasks in a federation."""

import math
from functools import partial

import pytest
import torch

from shared_components.core.method import Models, Profile, Update, load_method
from shared_components.core.partition import Partition, Piece, Role, partition_network
from shared_components.networks.pvt_fpn import PvtFpn
from tests.federation.conftest import TINY, Federation, make_job, narrow  # noqa: F401
from tests.methods.toys import card, names, own_models, step, tensor, trained

build = partial(load_method, "fedhca2")
ENCODER, WEIGHT, BIAS = "encoder.w", "decoder_global.conv.1.weight", "decoder_global.conv.1.bias"
OTHER = "decoder_global.conv.10.weight"
TOY = Partition(tuple(Piece(n, Role.MIXED, layer=n.rpartition(".")[0] or n) for n in (ENCODER, WEIGHT, BIAS, OTHER)))
SIZES = {ENCODER: 4, WEIGHT: 3, BIAS: 1, OTHER: 2}
TASKS = ["parts", "whole", "parts"]


def drawing(seed=0):
    """Return a function that draws the pieces of one site."""
    generator = torch.Generator().manual_seed(seed)
    return lambda: {n: torch.randn(k, generator=generator, dtype=torch.float64) for n, k in SIZES.items()}


def toy(seed=0, tasks=TASKS, **arguments):
    """A method's aggregator, its first state, models of the sites' own and one round's updates."""
    draw, aggregator, sites = drawing(seed), build(**arguments).server.aggregator, names(len(tasks))
    models = own_models(draw, len(tasks))
    state = aggregator.init(TOY, models, [Profile(s, 9, card(t)) for s, t in zip(sites, tasks, strict=True)])
    return aggregator, state, models, trained(models, draw)


def change(update, models, name):
    pairs = zip(update.pieces[name].tolist(), models.mixed[update.site][name].tolist(), strict=True)
    return [a - b for a, b in pairs]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def attended(own, others):
    scores = [math.exp(dot(own, other) / math.sqrt(len(own))) for other in others]
    return [sum(s * other[k] for s, other in zip(scores, others, strict=True)) / sum(scores) for k in range(len(own))]


def test_statistics_of_batch_norm_stay_those_of_the_site():
    name = "decoder_global.norm.running_var"
    part = Partition((*TOY, Piece(name, Role.MIXED, layer="decoder_global.norm")))
    _, _, models, sent = toy()
    for values in (*models.mixed.values(), *(update.pieces for update in sent)):
        values[name] = torch.rand(3)
    aggregator, sites = build().server.aggregator, names(len(TASKS))
    state = aggregator.init(part, models, [Profile(s, 9, card(t)) for s, t in zip(sites, TASKS, strict=True)])
    found = aggregator.apply(state, part, models, sent).models.mixed
    assert all(torch.equal(found[update.site][name], update.pieces[name]) for update in sent)


def test_every_module_of_a_decoder_is_a_layer():
    layers = partition_network(PvtFpn(out_channels=4), build().partition).mixed_layers
    assert layers["decoder_global.lateral.0"] == [f"decoder_global.lateral.0.{n}" for n in ("weight", "bias")]
    assert "encoder" in layers and all(len(names) <= 2 for n, names in layers.items() if n != "encoder")


def test_decoders_and_encoders_with_the_reported_direction_equal_plain_loops():
    aggregator, state, models, sent = toy()
    result = aggregator.apply(state, TOY, models, sent)
    for name in (WEIGHT, BIAS, OTHER):
        deltas = [change(u, models, name) for u in sent]
        for update, own in zip(sent, deltas, strict=True):
            last, more = models.mixed[update.site][name].tolist(), attended(own, deltas)
            expected = [a + b + 0.1 * c for a, b, c in zip(last, own, more, strict=True)]
            assert result.models.mixed[update.site][name].tolist() == pytest.approx(expected, abs=1e-12)
    share = list(result.report["conflict"].values())
    deltas = [change(u, models, ENCODER) for u in sent]
    direction = [sum(w * d[k] for w, d in zip(share, deltas, strict=True)) for k in range(4)]
    for i, update in enumerate(sent):
        same = [deltas[j] for j in range(3) if TASKS[j] == TASKS[i]]
        last = models.mixed[update.site][ENCODER].tolist()
        expected = [last[k] + sum(d[k] for d in same) / len(same) + 0.1 * direction[k] for k in range(4)]
        assert result.models.mixed[update.site][ENCODER].tolist() == pytest.approx(expected, abs=1e-12)
    assert result.report["groups"] == {"site-1": 0, "site-2": 1, "site-3": 0}
    assert 0 <= result.report["entropy"]["attention"] <= 1


def test_what_helped_gets_a_larger_share_and_weights_of_zero_keep_what_each_site_trained():
    aggregator, state, models, sent = toy(tasks=["a", "b", "c"], alpha=0.0, beta=0.0, hyper_rate=0.0)
    found = aggregator.apply(state, TOY, models, sent).models.mixed
    torch.testing.assert_close(found, {update.site: update.pieces for update in sent}, rtol=0, atol=1e-12)
    aggregator, state, models, sent = toy()
    first = aggregator.apply(state, TOY, models, sent)
    assert float(first.state["alpha/site-1"]) == 0.1
    for sign, grows in ((1, True), (-1, False)):
        moved = [
            Update(s, 1, {n: v + sign * first.state.get(f"direction/{n}", 0) for n, v in own.items()})
            for s, own in first.models.mixed.items()
        ]
        assert (float(aggregator.apply(first.state, TOY, first.models, moved).state["alpha/site-1"]) > 0.1) is grows


def test_alpha_and_beta_learn_as_automatic_differentiation_says():
    """Second round: backward(last outputs, last - current), SGD with momentum; here on a graph of its own."""
    aggregator, state, models, sent = toy()
    first = aggregator.apply(state, TOY, models, sent)
    again = trained(first.models, drawing(7))
    second = aggregator.apply(first.state, TOY, first.models, again)
    for i, update in enumerate(again):
        alpha = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
        beta = torch.full((2,), 0.1, dtype=torch.float64, requires_grad=True)  # conv.1 and conv.10
        share = list(first.report["conflict"].values())
        deltas = {n: [tensor(change(u, models, n)) for u in sent] for n in SIZES}
        outputs = {ENCODER: alpha.clamp(0, 1) * sum(w * d for w, d in zip(share, deltas[ENCODER], strict=True))}
        for name, number in ((WEIGHT, 0), (BIAS, 0), (OTHER, 1)):
            others = [d.tolist() for d in deltas[name]]
            outputs[name] = beta.clamp(0, 1)[number] * tensor(attended(others[i], others))
        backwards = {n: -tensor(change(update, first.models, n)) for n in SIZES}
        torch.autograd.backward([outputs[n] for n in SIZES], [backwards[n] for n in SIZES])
        torch.optim.SGD([alpha, beta], lr=0.01, momentum=0.9, weight_decay=1e-4).step()
        assert float(second.state[f"alpha/{update.site}"]) == pytest.approx(float(alpha.detach()), abs=1e-7)
        assert second.state[f"beta/{update.site}"].tolist() == pytest.approx(beta.tolist(), abs=1e-7)


def test_an_absent_site_keeps_its_models_and_other_shapes_are_not_attended_to():
    aggregator, state, models, sent = toy()
    first = aggregator.apply(state, TOY, models, sent[:2])
    assert first.models.mixed["site-3"] == models.mixed["site-3"]
    second = aggregator.apply(first.state, TOY, first.models, trained(first.models, drawing(5)))
    assert float(second.state["alpha/site-3"]) == 0.1 and float(second.state["alpha/site-1"]) != 0.1
    models = Models({}, {"site-1": {"w": tensor([0.0, 0.0])}, "site-2": {"w": tensor([0.0, 0.0, 0.0])}})
    sent = [Update("site-1", 0, {"w": tensor([1.0, 2.0])}), Update("site-2", 0, {"w": tensor([1.0, 0, 0])})]
    result = step(build().server.aggregator, models, sent, role=Role.MIXED)
    assert result.models.mixed["site-1"]["w"].tolist() == pytest.approx([1.1, 2.2])
    assert result.models.mixed["site-2"]["w"].tolist() == pytest.approx([1.1, 0, 0])


def test_two_tasks_exchange_encoders_and_decoders_and_keep_their_classifiers(sites_with, tmp_path):
    job, sites = make_job("fedhca2", training={**TINY, "iterations": 1}), sites_with("parts", "shaft_manipulator")
    federation = Federation(job, tmp_path / "runs", sites, ("a", "b")).run().finish()
    records = [r for r in federation.server.records if r["kind"] == "aggregation"]
    assert records[0]["groups"] == {"a": 0, "b": 1} and records[0]["alpha"] == {"a": 0.1, "b": 0.1}
    assert records[1]["alpha"] != records[0]["alpha"] and records[1]["beta"] != records[0]["beta"]
    mixed = federation.server.state.models.mixed
    assert not any(name.startswith("head") for name in mixed["a"])
    assert all(torch.isfinite(value).all() for own in mixed.values() for value in own.values())
