"""FedDP: whose queries are whose, both stages, and the disagreement of models worked by hand."""

import math

import pytest
import torch

from shared_components.core.bundle import load_bundle
from shared_components.core.method import Models, Update, load_method
from shared_components.core.partition import Partition, Piece, Role, partition_network
from shared_components.methods.feddp import TwoStages, disagreement, is_query
from shared_components.networks.bundle_config import build_network
from tests.federation.conftest import make_job, narrow, same  # noqa: F401
from tests.methods.toys import context, frames, names, profiles, tensor, updates

Q, W = "encoder.block1.0.attn.q.weight", "encoder.block1.0.attn.kv.weight"
BOTH = Partition((Piece(Q, Role.MIXED), Piece(W, Role.MIXED)))


@pytest.mark.full_width
def test_the_queries_of_the_encoder_stay_and_nothing_else():
    """Eight attention blocks of two on four stages, a weight and a bias each."""
    network = build_network(load_bundle("pvt_fpn").network)
    local = partition_network(network, load_method("feddp").partition).with_roles(Role.LOCAL)
    assert len(local) == 16 and all(".attn.q." in name for name in local)
    assert sum(network.state_dict()[name].numel() for name in local) == 2 * sum(c * c + c for c in (32, 64, 160, 256))
    assert not is_query("decoder.attn.q.weight") and not is_query("encoder.attn.query.weight")


def test_the_mean_is_plain_or_by_samples():
    given = updates([[1], [2], [6]], samples=[1, 1, 2])
    models = Models({"w": tensor([0.0])}, {})
    for weighting, mean in (("equal", 3.0), ("samples", 15 / 4)):
        result = TwoStages(weighting, None).apply({}, Partition(()), models, given)
        assert result.models.shared["w"].tolist() == pytest.approx([mean])


def two_stage_updates(step):
    values = zip(names(3), [1.0, 2.0, 6.0], strict=True)
    return [Update(s, 0, {Q: tensor([q + step]), W: tensor([10 * q + step])}, samples=1) for s, q in values]


def of_sites(result, name, count=3):
    return [result.models.mixed[site][name].item() for site in names(count)]


def first_round(aggregator, models, count):
    return aggregator.apply(aggregator.init(BOTH, models, profiles(count)), BOTH, models, two_stage_updates(0))


def test_stage_two_freezes_the_last_average_and_leaves_every_site_its_own_model():
    aggregator = TwoStages("equal", 2)
    models = Models({}, {site: {Q: tensor([0.0]), W: tensor([0.0])} for site in names(3)})
    first = first_round(aggregator, models, 3)
    assert of_sites(first, Q) == [1, 2, 6] and of_sites(first, W) == [30, 30, 30]
    assert not first.models.broadcast and first.report == {"stage": 1}
    second = aggregator.apply(first.state, BOTH, first.models, two_stage_updates(1))
    assert of_sites(second, W) == [31, 31, 31] and second.report == {"stage": 1}
    teachers = second.models.broadcast["teachers"]
    assert {name: value.item() for name, value in teachers.items()} == {
        f"{i}/{n}": v for i, (q, w) in enumerate([(2, 31), (3, 31), (7, 31)]) for n, v in ((Q, q), (W, w))
    }
    third = aggregator.apply(second.state, BOTH, second.models, two_stage_updates(5))
    assert same(third.models.broadcast["teachers"], teachers)
    assert of_sites(third, W) == [15, 25, 65] and third.report == {"stage": 2}
    aggregator = TwoStages("equal", 1)
    models = Models({}, {site: {Q: tensor([0.5]), W: tensor([0.0])} for site in names(4)})
    first = first_round(aggregator, models, 4)
    assert of_sites(first, W, 4) == [30] * 4 and of_sites(first, Q, 4) == [1, 2, 6, 0.5]
    teachers = first.models.broadcast["teachers"]
    assert [teachers[f"{i}/{W}"].item() for i in range(4)] == [30] * 4
    second = aggregator.apply(first.state, BOTH, first.models, two_stage_updates(1))
    assert of_sites(second, W, 4) == [11, 21, 61, 30]


def test_disagreement_is_the_deviation_of_probabilities_over_the_images_maximum():
    """Two models, one image of two pixels: they agree on the first, and are 0.9 against 0.5 on the second."""

    def logits_of(*ways):
        return [torch.tensor([[[[math.log(p / (1 - p)) for p in way]], [[0.0, 0.0]]]]) for way in ways]

    torch.testing.assert_close(disagreement(logits_of([0.8, 0.9], [0.8, 0.5])), torch.tensor([[[0.0, 1.0]]]))
    deviation = [abs(0.9 - 0.5) / 2, abs(0.8 - 0.6) / 2]  # of a third pixel whose models are 0.8 and 0.6
    logits = logits_of([0.9, 0.8], [0.5, 0.6])
    torch.testing.assert_close(disagreement(logits)[0, 0, 1].item(), deviation[1] / deviation[0])
    assert disagreement([logits[0], logits[0]]).abs().max() == 0


def test_strength_zero_is_the_task_alone_and_stage_two_weighs_pixels():
    torch.manual_seed(0)
    network = build_network(load_bundle("pvt_fpn").network).eval()
    own = network.state_dict()
    other = {n: v + 0.1 * torch.randn_like(v) for n, v in own.items()}
    teachers = {f"0/{n}": v for n, v in own.items()} | {f"1/{n}": v for n, v in other.items()}
    known, batch = context(1, broadcast={"teachers": teachers}), frames((64, 64), count=1)
    methods = (load_method("feddp", fine_tune_from=1, strength=strength) for strength in (0.0, 2.0))
    off, on = (method.local.objective(network, batch, known) for method in methods)
    assert off[1].value == 0 and torch.equal(off[0].value, on[0].value) and on[1].value > 0


@pytest.mark.slow
def test_a_run_with_both_stages_ends_and_resumes(federate, tmp_path):
    job = make_job("feddp", rounds=3, arguments={"fine_tune_from": 1})
    straight = federate(job, folder=tmp_path / "a").run_leaving(tmp_path / "b", round=2, trained=())
    again = federate(job, folder=tmp_path / "b", resume=True).run()
    assert same(straight.weights(), again.weights())
    assert [r["stage"] for r in again.server.records if r["kind"] == "aggregation"] == [1, 2, 2]
