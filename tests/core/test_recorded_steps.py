"""Recorded steps equal eager steps, read nothing on the host, and say why others are not recorded."""

import contextlib
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shared_components.core import losses, training
from shared_components.core.bundle import load_bundle
from shared_components.core.method import load_method, method_names, task_objective
from shared_components.core.objectives import squared_distance
from shared_components.core.partition import Role, cut, partition_network
from shared_components.core.recorded_steps import WARM_UP, Graphs, without_reading
from shared_components.core.task import make_task
from shared_components.core.training import TrainingSteps, make_optimizer, train_step, why_eager
from shared_components.core.training_settings import Training
from shared_components.networks.bundle_config import build_network, bundle_for
from shared_components.networks.tiny import Tiny
from tests.cuda_graphs import Graph, NoHost, cuda_graphs  # noqa: F401
from tests.methods.toys import SEGMENTATION, context, frames
from tests.narrow import make_narrow

RECORDED = ["fedavg", "pfedsis", "fedprox"]
STYLES = [[[0.5, 0.4, 0.3], [0.2, 0.2, 0.1]], [[0.1, 0.2, 0.3], [0.3, 0.2, 0.2]]]
RATE = 2**-11  # exact in float32, which recorded steps read


class Run:
    """A site's training in one round, with dropout and weights that have left the received ones."""

    def __init__(self, monkeypatch, method="fedavg", *, device="cpu", **settings):
        make_narrow(monkeypatch)
        torch.manual_seed(0)
        self.method = load_method(method)
        self.network = build_network(load_bundle(bundle_for(method)).network).to(device)
        self.settings = Training(learning_rate=RATE, **settings)
        self.partition = partition_network(self.network, self.method.partition)
        received = cut(self.network.state_dict(), self.partition, *Role)
        context = training.make_context(
            self.settings, SEGMENTATION, round=0, rounds=2, site=0, items={"style": STYLES}, received=received
        )
        self.context = replace(context, site=1, sites=2)
        self.optimizer = make_optimizer(self.network, self.settings)

    def batch(self, number, size=(32, 64), value=None):
        made = frames(size, seed=number)
        if draw := self.method.local.random_inputs:
            made |= draw(2, self.context, torch.Generator().manual_seed(number))
        return made if value is None else made | {"image": torch.full_like(made["image"], value)}

    def train(self, batches):
        torch.manual_seed(1)
        self.context.iterations = len(batches)
        known = self.method, self.context, self.partition
        steps = TrainingSteps(self.network, self.optimizer, *known)
        return steps.run(batches)

    def weights(self):
        state = training.optimizer_tensors(self.optimizer)
        return {**{n: v.clone() for n, v in self.network.state_dict().items()}, **state}


def both(monkeypatch, batches_of, method="fedavg", **settings):
    """Return losses and weights after eager steps and after recorded steps on the same batches.

    Both use the losses of recorded steps, which another test compares: then only their rounding does not differ.
    """
    outcomes = []
    for recorded in (False, True):
        with monkeypatch.context() as patch, without_reading():
            if recorded:
                patch.setattr(training, "why_eager", lambda *known: "")
            run = Run(patch, method, **settings)
            outcomes.append((run.train(batches_of(run)), run.weights()))
    return outcomes


def assert_same(outcomes, tolerance=0.0):
    """Compare losses, weights and optimizer states, by default to the bit."""
    (losses, weights), (others, other_weights) = outcomes
    assert others == pytest.approx(losses, rel=tolerance, abs=0) and weights.keys() == other_weights.keys()
    torch.testing.assert_close(other_weights, weights, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("method", RECORDED)
def test_recorded_steps_give_the_losses_and_weights_of_eager_steps(monkeypatch, cuda_graphs, method):  # noqa: F811
    outcomes = both(monkeypatch, lambda run: [run.batch(n) for n in range(WARM_UP + 3)], method)
    assert_same(outcomes)
    assert cuda_graphs.replays == 3
    begun, trained = Run(monkeypatch, method).weights(), outcomes[0][1]
    assert not torch.equal(trained["head_global.weight"], begun["head_global.weight"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("method", RECORDED)
def test_a_gpus_graphs_give_the_losses_and_weights_of_eager_steps(monkeypatch, method, accumulate):
    ends = []
    for eager in ("the comparison", ""):
        run = Run(monkeypatch, method, device="cuda", optimizer="sgd", accumulate=accumulate)
        run.context.eager = eager
        ends.append((run.train([run.batch(n) for n in range(2 * WARM_UP + 4)]), run.weights()))
    assert ends[1][0] == pytest.approx(ends[0][0], rel=1e-3)
    torch.testing.assert_close(ends[1][1], ends[0][1], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("settings", [
    {"accumulate": 2}, {"warmup_rounds": 1.0}, {"optimizer": "sgd", "warmup_rounds": 1.0},
    {"optimizer": "sgd", "accumulate": 2, "weight_decay": 0.1},
], ids=str)  # fmt: skip
def test_accumulation_schedules_and_sgd_are_recorded(monkeypatch, cuda_graphs, settings):  # noqa: F811
    outcomes = both(monkeypatch, lambda run: [run.batch(n) for n in range(8)], **settings)
    assert_same(outcomes, 1e-6 if "optimizer" in settings else 0.0)  # the fused SGD rounds otherwise than the eager one
    assert cuda_graphs.replays == 8 - settings.get("accumulate", 1) * WARM_UP


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_refused_recording_goes_on_eagerly_with_the_same_weights(monkeypatch, cuda_graphs, caplog, accumulate):  # noqa: F811
    @contextlib.contextmanager
    def refuse(graph, **settings):
        raise RuntimeError("operation not permitted when stream is capturing")
        yield

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    monkeypatch.setattr(Graphs, "_draws", lambda graphs: True)  # a draw of the GPU does not change the CPU's numbers
    batches = 3 * accumulate * (WARM_UP + 1)
    assert_same(both(monkeypatch, lambda run: [run.batch(n) for n in range(batches)], accumulate=accumulate))
    assert cuda_graphs.replays == 0
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("the next steps are eager: ") and "recorded_steps: false in limits.yaml" in warning


def test_a_second_batch_shape_has_its_own_graph(monkeypatch, cuda_graphs):  # noqa: F811
    def batches(run):
        return [run.batch(n, (32, 64) if n % 2 else (64, 32)) for n in range(2 * WARM_UP + 4)]

    assert_same(both(monkeypatch, batches))
    assert cuda_graphs.replays == 4


def test_a_second_run_in_a_round_replays_the_graphs_of_the_first(monkeypatch, cuda_graphs):  # noqa: F811
    monkeypatch.setattr(training, "why_eager", lambda *known: "")
    run = Run(monkeypatch, accumulate=2)
    run.context.iterations = 7
    steps = TrainingSteps(run.network, run.optimizer, run.method, run.context, run.partition)
    steps.run([run.batch(n) for n in range(7)])  # without an optimizer step on the last batch
    done = cuda_graphs.replays
    before = run.weights()
    steps.run([run.batch(7)])
    assert cuda_graphs.replays == done + 1
    assert all(torch.equal(value, before[name]) for name, value in run.weights().items())


@pytest.mark.parametrize("place", [1, WARM_UP + 1])
def test_a_loss_that_is_not_finite_ends_the_round_with_the_error_of_an_eager_step(monkeypatch, cuda_graphs, place):  # noqa: F811
    messages = []
    for recorded in (False, True):
        with monkeypatch.context() as patch:
            if recorded:
                patch.setattr(training, "why_eager", lambda *known: "")
            run = Run(patch)
            batches = [run.batch(n, value=math.nan if n == place else None) for n in range(WARM_UP + 3)]
            with pytest.raises(FloatingPointError) as error:
                run.train(batches)
            messages.append(str(error.value))
    assert messages[0] == messages[1] and "'segmentation': nan" in messages[0]


def test_losses_are_read_every_few_steps_and_a_bad_one_ends_a_long_round_early(monkeypatch, cuda_graphs):  # noqa: F811
    monkeypatch.setattr(training, "why_eager", lambda *known: "")
    monkeypatch.setattr(training, "READ_EVERY", 3)
    run, taken = Run(monkeypatch), []

    def batches():
        for number in range(9):
            taken.append(number)
            yield run.batch(number, value=math.nan if number == 4 else None)

    run.context.iterations = 9
    steps = TrainingSteps(run.network, run.optimizer, run.method, run.context, run.partition)
    with pytest.raises(FloatingPointError, match="segmentation"):
        steps.run(batches())
    assert taken == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("method", RECORDED)
def test_a_step_needs_no_value_on_the_host_and_makes_no_tensor_there(monkeypatch, cuda_graphs, method):  # noqa: F811
    monkeypatch.setattr(training, "why_eager", lambda *known: "")
    run = Run(monkeypatch, method)
    batch = run.batch(0)
    run.network.train()
    steps = TrainingSteps(run.network, run.optimizer, run.method, run.context, run.partition)
    with without_reading():
        steps._take(batch, True)  # moves the received weights and the styles to the device
        with NoHost():
            steps._take(batch, True)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoHost():
        train_step(run.network, run.optimizer, run.method, batch, run.context, run.partition)


def operators(monkeypatch, method):
    run = Run(monkeypatch, method)
    mode, batch = NoHost(), run.batch(0)
    with without_reading():
        terms = run.method.local.objective(run.network, batch, run.context)
        with mode:
            terms = run.method.local.objective(run.network, batch, run.context)
            training.route_gradients(terms, run.network, run.partition)
    return mode.count


def test_the_proximal_term_adds_few_operators_and_keeps_its_bits(monkeypatch):
    tensors = sum(1 for _ in Run(monkeypatch).network.parameters())
    # one sum per tensor on a CPU (on a GPU one operator), and one addition per gradient
    assert operators(monkeypatch, "fedprox") - operators(monkeypatch, "fedavg") < 3 * tensors + 30
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    received = {name: torch.randn_like(value) for name, value in network.state_dict().items()}
    plain = torch.stack([(p - received[n]).square().sum() for n, p in network.named_parameters()]).sum()
    ours = squared_distance(network, context(received=received))
    assert torch.equal(ours, plain)
    pairs = [torch.autograd.grad(0.3 * value, list(network.parameters())) for value in (ours, plain)]
    assert all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_losses_of_recorded_steps_equal_others_whatever_the_share_of_unlabelled_pixels(share, balance):
    batch = frames((8, 8))
    label = torch.where(torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(2)) < share, 255, batch["label"])
    logits = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(3))
    found = []
    for block in (False, True):
        with without_reading() if block else pytest.MonkeyPatch.context():
            found.append([
                losses.segmentation_loss(logits, label, balance=balance, dice=0.5), losses.objects_loss(logits, label),
                losses.consistency_loss(logits, label),
            ])  # fmt: skip
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-7)


def test_the_reason_for_eager_steps_is_named(monkeypatch):
    network = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda"))]), recordable=True)
    other = SimpleNamespace(parameters=network.parameters)

    plain = make_optimizer(nn.Linear(1, 1), Training())

    def reason(method="fedavg", task=SEGMENTATION, network=network, optimizer=plain, eager=""):
        known = load_method(method), replace(context(), task=task, eager=eager), load_method(method).local.objective
        return why_eager(network, optimizer, *known)

    assert reason() == reason("fedprox") == reason("pfedsis") == reason("fedbn") == ""
    assert reason(eager="limits.yaml says so") == "limits.yaml says so"
    assert reason("fedsam") == "fedsam takes several backward passes per step"
    assert reason("fedrep") == "the loss of fedrep is not declared recordable"
    assert reason(network=other) == "SimpleNamespace with the task segmentation is not declared recordable"
    assert reason(task=make_task("depth")) == "SimpleNamespace with the task depth is not declared recordable"
    assert reason(optimizer=torch.optim.RMSprop(nn.Linear(1, 1).parameters())) == "the optimizer is RMSprop"
    assert reason(network=Tiny(out_channels=2)) == "the device is cpu"
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert reason() == "several processes share the training"


def test_methods_with_the_tasks_loss_are_recorded_and_other_losses_must_declare_it():
    of_task = {name for name in method_names() if load_method(name).local.objective is task_objective}
    declared = {name for name in method_names() if getattr(load_method(name).local.objective, "recordable", False)}
    assert {"fedavg", "fedbn", "fedper", "ditto", "fedadam"} <= of_task and declared == {"fedprox", "pfedsis"}


def test_a_step_that_cannot_be_recorded_names_the_settings_that_switch_recording_off(cuda_graphs):  # noqa: F811
    weight = nn.Parameter(torch.zeros(1))

    def take(batch):
        return batch["image"] * float(batch["image"].sum())

    graphs = Graphs(torch.optim.SGD([weight], lr=0.1))
    for _ in range(WARM_UP):
        graphs(take, {"image": torch.ones(2)})
    with pytest.raises(ValueError, match=r"not permitted when stream .*; write recorded_steps: false in limits\.yaml"):
        graphs(take, {"image": torch.ones(2)})
    assert all(not group["capturable"] for group in graphs._optimizer.param_groups)
    assert Graph.replays == 0
