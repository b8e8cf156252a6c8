"""Steps: clipped, averaged, refused for a loss that is not finite, and recorded; a stand-in records without a GPU."""

import math

import pytest
import torch
from torch import nn

from shared_components.core.bundle import load_bundle
from shared_components.core.recorded_steps import WARM_UP, Graphs, recordable, without_reading
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import save_weights
from shared_components.weights.pretraining.learner import Learner, make_optimizer
from shared_components.weights.pretraining.plan import Phase, Settings, task_for
from shared_components.weights.pretraining.stream import batches
from tests.cuda_graphs import cuda_graphs  # noqa: F401
from tests.methods.toys import frames
from tests.weights.pretraining.conftest import tiny


@pytest.fixture
def learner_of(toy_bundle):
    def made(*, begin="random", **changes) -> Learner:
        settings, bundle = tiny(**changes), load_bundle("toy")
        task = task_for(bundle, settings.task, dict(settings.numbers))
        return Learner(bundle, task, settings, begin)

    return made


def batch_of(value: float = 0.5) -> dict[str, torch.Tensor]:
    return {"image": torch.full((2, 3, 64, 64), value), "label": torch.ones(2, 64, 64, dtype=torch.long)}


def weights(network: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in network.state_dict().values()]


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_first_weights_follow_from_the_seed_and_a_step_draws_from_its_number_alone(learner_of):
    one, other = learner_of(), learner_of()
    assert same(weights(one.network), weights(other.network))
    assert not same(weights(one.network), weights(learner_of(seed=6).network))
    torch.manual_seed(1)
    first = one.step(4, batch_of())
    torch.manual_seed(2)
    assert other.step(4, batch_of()) == first and same(weights(one.network), weights(other.network))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_and_moves_nothing(learner_of, value):
    learner = learner_of()
    learner.step(0, batch_of())
    before = [p.detach().clone() for p in (*learner.network.parameters(), *learner.average.parameters())]
    with pytest.raises(FloatingPointError, match="the loss of step 1 is nan"):
        learner.step(1, batch_of(value))
    assert same(before, [*learner.network.parameters(), *learner.average.parameters()])


def test_the_average_follows_closely_at_first_and_by_its_decay_later_and_has_statistics_too(learner_of):
    learner = learner_of(average=0.15)
    values = []
    for number in range(3):
        learner.step(number, batch_of())
        values.append(learner.network.head.weight.detach().clone())
    expected = values[0]  # the first is copied
    for value in values[1:]:
        expected = 0.15 * expected + 0.85 * value
    assert torch.allclose(learner.average.head.weight, expected, atol=1e-7)
    ours, averaged = learner.network.encoder[1], learner.average.encoder[1]  # batch norm
    assert averaged.num_batches_tracked == ours.num_batches_tracked == 3
    assert averaged.running_mean.abs().sum() > 0 and averaged.running_mean.isfinite().all()
    slow = learner_of(average=0.999)
    slow.step(0, batch_of())
    first = slow.network.head.weight.detach().clone()
    slow.step(1, batch_of())
    now = slow.network.head.weight.detach()
    assert torch.allclose(slow.average.head.weight, 2 / 11 * first + 9 / 11 * now, atol=1e-7)


def test_a_gradient_is_clipped_to_norm_one_and_nothing_is_dropped_out(learner_of, monkeypatch):
    learner = learner_of()
    assert [m.p for m in learner.network.modules() if isinstance(m, nn.Dropout2d)] == [0.0]
    monkeypatch.setattr(type(learner.task), "loss", lambda self, outputs, batch: 1e6 * outputs.square().mean())
    learner.step(0, batch_of())
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in learner.network.parameters() if p.grad is not None))
    assert norm == pytest.approx(1.0, rel=1e-4)


def test_norms_and_biases_do_not_decay_and_weights_stay_float32(learner_of):
    network = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    groups = make_optimizer(network, tiny(weight_decay=0.3)).param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.3), (3, 0.0)]
    learner, plain = learner_of(precision="bf16"), learner_of()
    assert learner.step(0, batch_of(0.3)) != plain.step(0, batch_of(0.3))
    assert {value.dtype for value in learner.network.parameters()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["segmentation", "depth", "reconstruction"])
def test_the_loss_falls_whatever_the_task(learner_of, task):
    learner = learner_of(task=task, phases=(Phase(64, 64, 60),), frames=6, batch=4, moved=0.0)
    stream = batches(learner.settings, learner.task.spec)
    losses = [learner.step(number, batch) for number, batch in enumerate(stream)]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def test_a_start_from_a_file_pastes_its_weights(learner_of, tmp_path):
    one = learner_of(seed=1)
    save_weights(tmp_path / "model.safetensors", one.network.state_dict())
    other = learner_of(seed=2, begin=tmp_path / "model.safetensors")
    assert same(weights(other.network), weights(one.network)) and other.began["from"] == "model.safetensors"
    assert same(weights(other.average), weights(one.network))


@pytest.mark.parametrize(("bundle", "task", "yes"), [
    ("pvt_fpn", "segmentation", True), ("pvt_fpn", "depth", False), ("fedst", "segmentation", False),
    ("surgfed", "segmentation", False),
])  # fmt: skip
def test_steps_are_recorded_where_that_has_been_seen_to_work(bundle, task, yes):
    opened = load_bundle(bundle)
    made = task_for(opened, task)
    assert recordable(build_network(opened.network, out_channels=made.channels), made) is yes


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_recorded_steps_give_the_bits_of_eager_steps(learner_of, cuda_graphs, monkeypatch, precision):  # noqa: F811
    """With the losses and the fused AdamW of recorded steps, and rates that are exact in float32."""
    monkeypatch.setattr(Settings, "rate", lambda self, number: 2.0 ** -(8 + number))
    one, other = (learner_of(precision=precision) for _ in range(2))
    one.optimizer.param_groups[0]["fused"] = one.optimizer.param_groups[1]["fused"] = True
    other.graphs = Graphs(other.optimizer)
    for number in range(WARM_UP + 3):
        batch = frames((64, 64), classes=2, seed=number)
        with without_reading():
            loss = one.step(number, batch)
        assert other.step(number, batch) == loss
    assert same(one.tensors().values(), other.tensors().values()) and cuda_graphs.replays == 3
