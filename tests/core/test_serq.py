"""SERQ: its equations against scalar loops, its training against a loop by hand, and what it must not change."""

import copy
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shared_components.core import training as local
from shared_components.core.method import Aggregation, Models, load_method
from shared_components.core.partition import Role, Slice, cut, everything, partition_network
from shared_components.core.serq import FineTuning, Quantification
from shared_components.core.serq_equations import (
    Explicit,
    FramesAlone,
    compared,
    descriptor_distance,
    mean_features,
    moved,
    moving_average,
    representation_distance,
)
from shared_components.core.task import make_task
from shared_components.federation.site.local_round import LocalRound
from shared_components.networks.bundle_config import Training
from shared_components.networks.parts import freeze
from shared_components.networks.protocols import Encodes, require
from shared_components.networks.pvt_fpn import PvtFpn
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from shared_components.networks.tiny import Tiny

CLASSES = ("background", "shaft")
NOT_NUMBERS = [math.nan, math.inf, True, "1", None]


# ---- the equations


def test_the_running_mean_begins_with_the_first_rounds_and_then_keeps_alpha_of_it():
    first = moving_average(None, torch.tensor([[[2.0, -4.0]]]), share=0.9)
    assert first.tolist() == [[[2.0, -4.0]]]
    second = moving_average(first, torch.tensor([[[12.0, 6.0]]]), share=0.9)
    torch.testing.assert_close(second, torch.tensor([[[3.0, -3.0]]]))  # 0.9*2 + 0.1*12, 0.9*-4 + 0.1*6
    assert moving_average(first, second, share=0.0).equal(second)


def test_eq_11_by_a_scalar_loop():
    """The value is of the mean that is given; the gradient is that of the batch's mean in its place."""
    drawn = torch.randn(3, 2, 2, 2, requires_grad=True)
    mean, descriptor, average = torch.randn(3, 2, 2, 2)
    found = descriptor_distance(mean, drawn, descriptor, average)
    found.backward()
    total = 0.0
    for c in range(2):
        for y in range(2):
            for x in range(2):
                off = float(mean[c, y, x]) - float(descriptor[c, y, x]) - float(average[c, y, x])
                total += off**2
                for b in range(3):
                    assert float(drawn.grad[b, c, y, x]) == pytest.approx(2 * off / 3 / 8, rel=1e-5)
    assert float(found.detach()) == pytest.approx(total / 8, rel=1e-5)


def test_eq_12_by_a_scalar_loop():
    features, pretrained, descriptor = (torch.randn(3, 2, 2, 2), torch.randn(3, 2, 2, 2), torch.randn(2, 2, 2))
    frames = []
    for b in range(3):
        squares = [
            (float(features[b, c, y, x]) - (float(pretrained[b, c, y, x]) - float(descriptor[c, y, x]))) ** 2
            for c in range(2)
            for y in range(2)
            for x in range(2)
        ]
        frames.append(sum(squares) / 8)
    found = float(representation_distance(features, pretrained, descriptor))
    assert found == pytest.approx(sum(frames) / 3, rel=1e-5)


def test_a_descriptor_that_is_all_of_the_difference_leaves_no_distance():
    instrument, domain = torch.randn(2, 3, 1, 2), torch.randn(3, 1, 2)
    assert float(representation_distance(instrument, instrument + domain, domain)) < 1e-12
    assert float(descriptor_distance((instrument + domain).mean(0), instrument, domain, instrument.mean(0))) < 1e-12


# ---- arguments


@pytest.mark.parametrize("name", ["batches", "pretraining", "average", "descriptor_weight"])
@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1])
def test_an_argument_that_is_no_number_of_its_range_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"serq: {name} is {value!r}; it is a"):
        Quantification(**{name: value})


@pytest.mark.parametrize("values", [{"batches": 0}, {"batches": 2.0}, {"pretraining": 0.5}, {"average": 1}])
def test_values_beside_the_ranges_are_refused(values):
    with pytest.raises(ValueError, match="serq: "):
        Quantification(**values)
    Quantification(batches=1, pretraining=0, average=0, descriptor_weight=0, descriptor_rate=0)


@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1])
def test_the_second_weight_is_checked_too(value):
    with pytest.raises(ValueError, match="serq: representation_weight is "):
        Quantification(representation_weight=value)


@pytest.mark.parametrize("value", [*NOT_NUMBERS, -0.1, 1.1])
def test_the_descriptors_rate_is_a_share(value):
    with pytest.raises(ValueError, match="serq: descriptor_rate is "):
        Quantification(descriptor_rate=value)


@pytest.mark.parametrize("value", [*NOT_NUMBERS, 0, -1])
def test_the_pretrainings_rate_is_above_0(value):
    with pytest.raises(ValueError, match="serq: pretraining_rate is "):
        Quantification(pretraining_rate=value)


@pytest.mark.parametrize("update", [Quantification, FineTuning])
@pytest.mark.parametrize("value", [*NOT_NUMBERS, 0, -1])
def test_a_rate_is_above_0(update, value):
    with pytest.raises(ValueError, match=f": rate is {value!r}; it is a"):
        update(rate=value)


@pytest.mark.parametrize("value", [*NOT_NUMBERS, 0, -1, 2.0])
def test_fine_tuning_needs_a_batch(value):
    with pytest.raises(ValueError, match="fine-tuning at the server: batches is "):
        FineTuning(value)


# ---- networks


class Little(nn.Module):
    """An encoder of two maps with running statistics, a layer over time that frames alone do not pass, a decoder."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = Maps(dropout)
        self.temporal = nn.Conv2d(4, 4, 1)
        self.head = nn.Conv2d(4, len(CLASSES), 1)

    def decode(self, features):
        first, last = features
        return nn.functional.interpolate(self.head(first + last.mean((2, 3), keepdim=True)), scale_factor=2.0)


class Maps(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 2, stride=2, bias=False)  # its gradient would be noise, which Adam enlarges
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Conv2d(4, 4, 2, stride=2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, image):
        first = self.norm(self.first(image))
        return [first, self.dropout(self.last(first.relu()))]


@pytest.mark.parametrize("other", [Tiny, PvtFpn])
def test_a_network_that_does_not_predict_from_its_encoders_maps_is_refused(other):
    """PvtFpn has both names, but its decode takes two halves."""
    require(PvtFpnClips(), Encodes, "fedst")
    with pytest.raises(ValueError, match=f"fedst needs a network with a way .* {other.__name__} has none: "):
        require(other(), Encodes, "fedst")


# ---- a server's round


class Set:
    """Random frames or clips that are never changed, in place of a data set; the loop below is the same."""

    def __init__(self, size, frames=1, count=6):
        generator = torch.Generator().manual_seed(3)
        shape = (count, 3, *size) if frames == 1 else (count, frames, 3, *size)
        self.images = torch.rand(shape, generator=generator)
        self.labels = torch.randint(len(CLASSES), (count, *size), generator=generator)

    def batch(self, number, last_only=False):
        chosen = [(2 * number) % len(self.images), (2 * number + 1) % len(self.images)]
        image = self.images[chosen]
        return {"image": image[:, -1] if last_only else image, "label": self.labels[chosen]}


class Round(LocalRound):
    """A LocalRound whose batches are of a `Set`, in order, however they are asked for."""

    last_only = False

    def _drawn(self, iterations):
        for number in range(iterations):
            yield self.dataset.batch(number, self.last_only)

    def frames(self, count=None):
        yield from (self.dataset.batch(number, self.last_only) for number in range(3))


def server_round(network, rule=None, *, frames=1, size=(8, 16), kept=None, memory=None, round=0, **settings):
    training = Training(**{"batch_size": 2, "iterations": 1, "learning_rate": 0.01, "seed": 5} | settings)
    task = make_task("segmentation", classes=CLASSES)
    known = local.make_context(training, task, round=round, site=3, memory=dict(memory or {}))
    partition = partition_network(network, rule or everything(Role.GLOBAL))
    return Round(network, partition, known, load_method("fedavg"), Set(size, frames), training, kept=kept or {})


def before_of(work):
    state = work.network.state_dict()
    return Aggregation({"rounds": torch.tensor(7)}, Models(cut(state, work.partition, Role.GLOBAL), {"a": {}}))


def seeded(network=Little, **arguments):
    torch.manual_seed(11)
    return network(**arguments)


def by_hand(network, data, *, rounds, pretraining, batches, alpha, first_weight, second_weight, rate):
    """Section 3.3 as a plain loop with two plain optimizers; yields what each round ends with."""
    loss = make_task("segmentation", classes=CLASSES).loss
    teacher, average, D = copy.deepcopy(network), None, torch.zeros(4, 2, 4)
    of_teacher = torch.optim.AdamW(
        [*teacher.encoder.parameters(), *teacher.head.parameters()], lr=0.03, weight_decay=0.01
    )
    of_student = torch.optim.AdamW(
        [*network.encoder.parameters(), *network.head.parameters()], lr=0.01, weight_decay=0.01
    )
    for round in range(rounds):
        teacher.train()
        for n in range(pretraining if round == 0 else 0):
            of_teacher.zero_grad()
            loss(teacher.decode(teacher.encoder(data.batch(n)["image"])), data.batch(n)).backward()
            of_teacher.step()
        of_teacher.param_groups[0]["lr"] = 0.01
        with torch.no_grad():
            current, mean = (
                torch.cat([one.eval().encoder(data.batch(n)["image"])[-1] for n in range(batches)]).mean(0)
                for one in (network, teacher)
            )
        average = current if average is None else alpha * average + (1 - alpha) * current
        teacher.train()
        for n in range(batches):
            of_teacher.zero_grad()
            maps = teacher.encoder(data.batch(n)["image"])
            push = 2 * (mean - D - average) / D.numel()  # of the squared distance by the mean
            of_batch = maps[-1].mean(0)
            (loss(teacher.decode(maps), data.batch(n)) + first_weight * (push * of_batch).sum()).backward()
            of_teacher.step()
            mean = 0.9 * mean + 0.1 * of_batch.detach()
            D = D + rate * (mean - D - average)
        teacher.eval()
        network.train()
        for n in range(batches):
            of_student.zero_grad()
            maps = network.encoder(data.batch(n)["image"])
            with torch.no_grad():
                target = teacher.encoder(data.batch(n)["image"])[-1] - D
            off = sum(((a - b) ** 2).sum() for a, b in zip(maps[-1], target, strict=True)) / len(target)
            total = loss(network.decode(maps), data.batch(n)) + second_weight / D.numel() * off
            total.backward()
            of_student.step()
        yield copy.deepcopy(network.state_dict()), copy.deepcopy(teacher.state_dict()), D, average


def test_two_rounds_are_those_of_a_loop_by_hand():
    """The server's site.yaml has no validation split: pre-training takes all of its batches."""
    serq = Quantification(
        rate=1.0, batches=3, pretraining=2, average=0.75, descriptor_weight=4.0, representation_weight=6.0,
        pretraining_rate=3.0, descriptor_rate=0.3,
    )  # fmt: skip
    work = server_round(seeded())
    expected = by_hand(
        seeded(), work.dataset, rounds=2, pretraining=2, batches=3, alpha=0.75, first_weight=4.0,
        second_weight=6.0, rate=0.3,
    )  # fmt: skip
    for number, (shared, pretrained, descriptor, average) in enumerate(expected):
        after, losses = serq(work, before_of(work))
        tensors = work.tensors()
        torch.testing.assert_close(after.models.shared, dict(shared), rtol=1e-4, atol=1e-6)
        for name, value in pretrained.items():
            torch.testing.assert_close(tensors[f"memory/pretrained/{name}"], value, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(tensors["memory/descriptor"], descriptor, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(tensors["memory/average"], average, rtol=1e-5, atol=1e-7)
        names = {"pretrained segmentation", "descriptor", "global segmentation", "representation"}
        assert set(losses) == names | ({"pretraining segmentation"} if number == 0 else set())
        report = after.report["serq"]
        assert report["descriptor_square"] == pytest.approx(float((descriptor**2).mean()), rel=1e-4)
        assert report["average_square"] == pytest.approx(float((average**2).mean()), rel=1e-4)
        assert ("seconds_pretraining" in after.report) == (number == 0)
        assert report.get("pretraining_batches") == (2 if number == 0 else None)
        assert after.state["rounds"] == 7 and after.models.mixed == {"a": {}}
        memory = {n.removeprefix("memory/"): v for n, v in tensors.items() if n.startswith("memory/")}
        work = server_round(work.network, kept=tensors, memory=memory, round=1)


# ---- the descriptor learns, and features keep their variance


def explicit(rate, *, steps, size=64):
    """Return Eq. 11's objective after some batches of two frames whose features are fixed, and their expectation."""
    generator = torch.Generator().manual_seed(4)
    expected, average = torch.randn(2, size, 1, 1, generator=generator)
    objective = Explicit(average, 300.0, rate, expected.clone(), torch.zeros_like(average))
    network = torch.nn.Module()
    network.encoder = lambda image: [image]
    network.decode = lambda maps: maps[-1].requires_grad_()
    task = SimpleNamespace(loss=lambda outputs, batch: outputs.sum())
    for _ in range(steps):
        image = expected + torch.randn(2, size, 1, 1, generator=generator)
        objective(network, {"image": image}, SimpleNamespace(task=task))
    return objective, expected - average


def test_the_descriptor_reaches_the_difference_of_the_means_within_the_first_rounds_batches():
    """Frames scatter by 1 about E F_pre, and 26 batches of two are what the job has in a round."""
    objective, difference = explicit(0.2, steps=26)
    left = float((objective.descriptor - difference).square().mean())
    assert left < 0.1 * float(difference.square().mean())
    still, _ = explicit(0.0, steps=26)
    assert not still.descriptor.any()


def test_a_step_of_the_descriptor_is_gradient_descent_on_eq_11():
    """Of the rate `descriptor_rate` N / 2, as torch's SGD takes it on the gradient of autograd."""
    objective, _ = explicit(0.2, steps=1)
    D = nn.Parameter(torch.zeros_like(objective.average))
    descriptor_distance(objective.mean, objective.mean[None], D, objective.average).backward()
    torch.optim.SGD([D], lr=0.2 * D.numel() / 2).step()
    torch.testing.assert_close(objective.descriptor, D.detach())


def shrunk(distance):
    """Train the scale of zero-mean features towards a mean of zero, and return what is left of their variance."""
    generator, scale = torch.Generator().manual_seed(2), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([scale], lr=0.05)
    for _ in range(50):
        features = scale * torch.randn(2, 8, 4, 4, generator=generator)
        optimizer.zero_grad()
        distance(features).backward()
        optimizer.step()
    return float(scale.detach() ** 2)


def test_eq_11_leaves_the_variance_of_features_whose_mean_is_right():
    """With the mean of two frames in place of the expectation, nothing of it was left after a few dozen batches."""
    zero = torch.zeros(8, 4, 4)
    objective = Explicit(zero, 1.0, 0.0, zero, zero)

    def of_the_window(features):
        found = descriptor_distance(objective.mean, features, zero, zero)
        objective.mean = objective.mean.lerp(features.detach().mean(0), 0.1)
        return found

    assert shrunk(lambda features: features.mean(0).square().mean()) < 0.05
    assert shrunk(of_the_window) == pytest.approx(1.0, abs=0.1)


# ---- the report


def test_the_reports_distances_are_means_over_frames_with_dropout_off():
    network, other, data = seeded(dropout=0.5), seeded(), Set((8, 16))
    with torch.no_grad():
        other.encoder.last.bias += 0.5
    descriptor = torch.full((4, 2, 4), 0.25)
    found = compared(network.train(), other, descriptor, [data.batch(0), {"image": data.images[2:3]}])
    assert found["descriptor_square"] == pytest.approx(0.0625)
    assert found["difference_square"] == pytest.approx(0.25, rel=1e-4)
    assert found["distance_square"] == pytest.approx(0.0625, rel=1e-4)


def test_how_far_the_descriptor_moved_is_a_share_of_its_length():
    assert moved(torch.tensor([3.0, 0.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.8)
    assert moved(torch.zeros(2), torch.zeros(2)) == 0 and moved(torch.zeros(2), torch.ones(2)) == 1
    assert moved(torch.ones(2), torch.zeros(2)) == 1


def said_of(caplog, work=None, **arguments):
    work = work or server_round(seeded())
    serq = Quantification(batches=2, pretraining=2, pretraining_rate=5.0, **arguments)
    caplog.clear()
    with caplog.at_level("WARNING", logger="shared_components.core.serq"):
        serq(work, before_of(work))
    return [record.getMessage() for record in caplog.records if "descriptor" in record.getMessage()]


def test_a_descriptor_that_learns_is_not_spoken_of(caplog):
    assert said_of(caplog, rate=1e-9) == []


def test_a_descriptor_that_the_job_keeps_at_zero_is_not_spoken_of(caplog):
    assert said_of(caplog, descriptor_rate=0) == []


def test_a_descriptor_that_stands_still_is_said(caplog):
    """Noise of 0.02, as D began with once, that a rate of nothing leaves where it is."""
    first = server_round(seeded())
    Quantification(batches=2, pretraining=2)(first, before_of(first))
    noise = 0.02 * torch.randn(4, 2, 4, generator=torch.Generator().manual_seed(1))
    memory = {**first.context.memory, "descriptor": noise}
    said = said_of(caplog, server_round(seeded(), memory=memory), descriptor_rate=1e-6)
    assert "the domain descriptor stood still (it moved by " in said[0]


def test_a_descriptor_that_adds_to_the_distance_is_said(caplog):
    first = server_round(seeded())
    Quantification(batches=2, pretraining=0)(first, before_of(first))
    memory = {**first.context.memory, "descriptor": torch.full((4, 2, 4), 5.0)}
    (said,) = said_of(caplog, server_round(seeded(), memory=memory), descriptor_rate=0.01)
    assert "the domain descriptor explains nothing: with it the two models' features are " in said


# ---- pre-training


class Scored(Round):
    """A round whose validation scores are given, and which notes the rates of its trainings."""

    scores, rates = (), None

    def validate(self, network):
        assert isinstance(network, FramesAlone)
        return next(self.scores)

    def train(self, objective=None, *, network=None, iterations=None, rate=1.0, **known):
        self.rates.append((iterations, rate))
        return super().train(objective, network=network, iterations=iterations, rate=rate, **known)


def scored(*scores):
    work = server_round(seeded())
    work.__class__, work.scores, work.rates = Scored, iter(scores), []
    return work


def test_the_pretraining_ends_when_validation_stops_rising_and_has_a_rate_of_its_own():
    work = scored(0.1, 0.3, 0.2, 0.2, 0.2, 0.3)
    after, losses = Quantification(batches=1, rate=0.5, pretraining_rate=2.0)(work, before_of(work))
    assert work.rates == [(25, 2.0)] * 5 + [(1, 0.5)] * 2
    report = after.report["serq"]
    assert (report["pretraining_batches"], report["pretraining_before"], report["pretraining_best"]) == (125, 0.1, 0.3)
    assert after.report["seconds_pretraining"] > 0 and "pretraining segmentation" in losses


def test_the_pretraining_takes_no_more_than_its_budget():
    work = scored(*(n / 10 for n in range(9)))
    Quantification(batches=1, pretraining=60)(work, before_of(work))
    assert [count for count, _ in work.rates] == [25, 25, 10, 1, 1]


def test_a_server_without_validation_frames_is_told_so(caplog):
    work = server_round(seeded())
    after, _ = Quantification(batches=1, pretraining=30)(work, before_of(work))
    (said,) = [record.getMessage() for record in caplog.records if "validation" in record.getMessage()]
    assert "no validation split, so that pre-training took all of its 30 batches" in said
    assert after.report["serq"]["pretraining_batches"] == 30 and "pretraining_best" not in after.report["serq"]


def test_frames_alone_pass_encoder_and_decoder():
    network, clips = seeded().eval(), torch.rand(2, 3, 3, 8, 16)
    expected = network.decode(network.encoder(clips[:, -1]))
    assert torch.equal(FramesAlone(network)(clips), expected)
    assert torch.equal(FramesAlone(network)(clips[:, -1]), expected)


def test_in_bf16_the_distances_and_the_memory_stay_float32():
    plain, short = (server_round(seeded(), precision=precision) for precision in ("float32", "bf16"))
    serq = Quantification(batches=2, pretraining=1)
    (_, exact), (_, rounded) = serq(plain, before_of(plain)), serq(short, before_of(short))
    assert exact != rounded
    assert all(rounded[name] == pytest.approx(value, rel=0.05) for name, value in exact.items())
    assert {v.dtype for v in short.context.memory.values()} == {torch.float32, torch.int64}


def test_the_mean_is_over_frames_and_leaves_the_network_as_it_was():
    network, data = seeded(dropout=0.5), Set((8, 16))
    state = copy.deepcopy(network.state_dict())
    found, same = mean_features([network, network], [data.batch(0), {k: v[:1] for k, v in data.batch(1).items()}])
    with torch.no_grad():
        maps = [network.encoder(data.images[n : n + 1])[-1][0] for n in range(3)]  # in evaluation, dropout off
    torch.testing.assert_close(found, (maps[0] + maps[1] + maps[2]) / 3)
    assert torch.equal(found, same)
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


def two_roles(network):
    """Rows 0:2 of the encoder's last layer LOCAL, its normalisation LOCAL, the head's bias MIXED."""

    def slices(name, tensor, module):
        if name.startswith("encoder.last"):
            return Slice(Role.LOCAL, 0, 2), Slice(Role.GLOBAL, 2, 4)
        roles = {"encoder.norm": Role.LOCAL, "head.bias": Role.MIXED}
        return (Slice(next((role for start, role in roles.items() if name.startswith(start)), Role.GLOBAL)),)

    return slices


@pytest.mark.parametrize("update", [Quantification(batches=3, pretraining=1), FineTuning(3)])
def test_what_is_not_global_and_what_frames_do_not_pass_stays_bit_equal(update):
    """A tenth of every weight is decayed per step, wherever the optimizer steps at all."""
    work = server_round(seeded(dropout=0.2), two_roles, weight_decay=10.0)
    state = copy.deepcopy(work.network.state_dict())
    after, _ = update(work, before_of(work))
    rest = cut(work.network.state_dict(), work.partition, Role.LOCAL, Role.MIXED)
    assert len(rest) == 8  # two halves, five of the normalisation, one bias
    for name, value in cut(state, work.partition, Role.LOCAL, Role.MIXED).items():
        assert torch.equal(rest[name], value), name
    assert work.network.encoder.norm.weight.grad is None and work.network.head.bias.grad is None
    assert set(after.models.shared) == set(work.partition.with_roles(Role.GLOBAL))
    for name in ("temporal.weight", "temporal.bias"):
        assert torch.equal(after.models.shared[name], state[name])
    for name in ("encoder.first.weight", "encoder.last.weight[2:4]", "head.weight"):
        assert not torch.equal(after.models.shared[name], before_of_state(state, work)[name]), name


def before_of_state(state, work):
    return cut(state, work.partition, Role.GLOBAL)


def test_rows_that_are_not_global_are_the_same_in_every_step():
    """They decide what the others learn; shrunk within a round and put back after it, they would not show."""
    seen = []
    work = server_round(seeded(), two_roles, weight_decay=10.0)
    work.network.encoder.last.register_forward_pre_hook(
        lambda module, _: seen.append(module.weight[:2].detach().clone())
    )
    FineTuning(3)(work, before_of(work))
    assert len(seen) == 3 and all(torch.equal(value, seen[0]) for value in seen)


def test_of_a_clip_the_last_frame_counts():
    results = []
    for last_only in (False, True):
        work = server_round(seeded(), frames=3)
        work.last_only = last_only
        after, losses = Quantification(batches=2, pretraining=1)(work, before_of(work))
        results.append((after.models.shared, losses))
    assert results[0][1] == results[1][1]
    assert all(torch.equal(value, results[1][0][name]) for name, value in results[0][0].items())


def test_a_weight_of_nothing_leaves_its_term_out_and_the_descriptor_at_zero():
    work = server_round(seeded())
    after, losses = Quantification(batches=2, pretraining=0, descriptor_weight=0, representation_weight=0.0)(
        work, before_of(work)
    )
    assert set(losses) == {"pretrained segmentation", "global segmentation"}
    assert after.report["serq"]["descriptor_square"] == after.report["serq"]["descriptor_moved"] == 0
    assert not work.context.memory["descriptor"].any()


def test_without_representation_the_shared_model_is_fine_tuned():
    tuned, quantified = server_round(seeded()), server_round(seeded())
    serq = Quantification(batches=3, pretraining=0, representation_weight=0)
    one, _ = FineTuning(3)(tuned, before_of(tuned))
    other, _ = serq(quantified, before_of(quantified))
    assert all(torch.equal(value, other.models.shared[name]) for name, value in one.models.shared.items())
    assert not torch.equal(one.models.shared["head.bias"], seeded().head.bias)


def test_two_models_of_one_encoder_differ_by_no_domain():
    """Fixed, F_pre is F_g: with the same frames in every batch D stays at zero, whatever its rate."""
    network = seeded()
    freeze(network, ["encoder"])
    work = server_round(network)
    work.dataset = Set((8, 16), count=2)
    serq = Quantification(batches=20, pretraining=0, rate=1.0, descriptor_rate=1.0)
    report = serq(work, before_of(work))[0].report["serq"]
    assert report["descriptor_square"] < 1e-12 and report["difference_square"] == 0


def test_what_is_fixed_stays_in_both_models_and_the_rest_trains():
    network = seeded()
    freeze(network, ["encoder"])
    state = copy.deepcopy(network.state_dict())
    work = server_round(network, weight_decay=10.0)
    after, _ = Quantification(batches=2, pretraining=1)(work, before_of(work))
    for name, value in state.items():
        if name.startswith("encoder"):
            assert torch.equal(work.context.memory[f"pretrained/{name}"], value)
            assert torch.equal(network.state_dict()[name], value)
    assert set(after.models.shared) == {"temporal.weight", "temporal.bias", "head.weight", "head.bias"}
    assert not torch.equal(after.models.shared["head.weight"], state["head.weight"])


def test_a_network_that_is_fixed_where_frames_pass_is_refused():
    network = seeded()
    freeze(network, ["encoder", "head"])
    work = server_round(network)
    with pytest.raises(ValueError, match=r"serq: training\.fixed names all that predicts .*name fewer parts"):
        FineTuning(1)(work, before_of(work))


def test_a_memory_of_frames_of_another_size_is_refused_by_one_sentence():
    work = server_round(seeded())
    Quantification(batches=1, pretraining=0)(work, before_of(work))
    other = server_round(seeded(), size=(16, 16), memory=work.context.memory)
    with pytest.raises(
        ValueError, match=r"serq: the descriptor .* is \(4, 2, 4\), .* maps of \(4, 4, 4\); .*start a new run$"
    ):
        Quantification(batches=1, pretraining=0)(other, before_of(other))


def test_a_network_without_a_decode_is_refused_by_the_update_itself():
    work = server_round(Tiny(out_channels=len(CLASSES)))
    for update in (Quantification(), FineTuning()):
        with pytest.raises(ValueError, match=r"serq needs a network with a way .* Tiny has none"):
            update(work, before_of(work))


def queries_local(network):
    return lambda name, tensor, module: (
        Slice(Role.LOCAL if ".attn.q." in name or name == "indicator" else Role.GLOBAL),
    )


def test_fedsts_own_network_keeps_its_queries_its_layers_over_time_and_its_selection():
    network = seeded(PvtFpnClips, out_channels=len(CLASSES), receptive_fields=(1, 2), kernels=(1, 2), window=2)
    state = copy.deepcopy(network.state_dict())
    work = server_round(network, queries_local, frames=2, size=(32, 64), weight_decay=10.0)
    after, losses = Quantification(batches=1, pretraining=0)(work, before_of(work))
    held = ("temporal.", "selection.", "indicator")
    for name, value in network.state_dict().items():
        if name.startswith(held) or ".attn.q." in name:
            assert torch.equal(value, state[name]), name
    assert not torch.equal(after.models.shared["head.weight"], state["head.weight"])
    assert not any(".attn.q." in name for name in after.models.shared)
    assert work.context.memory["descriptor"].shape == (256, 1, 2)
    assert all(math.isfinite(value) for value in losses.values())


@pytest.mark.parametrize("update", [partial(Quantification, pretraining=0), FineTuning])
def test_a_rate_is_a_multiple_of_the_jobs_learning_rate(update):
    """Where the server alone trains, a share of a rate is that rate written down; other rates end elsewhere."""
    ends = []
    for rate, learning_rate in ((0.25, 0.04), (1.0, 0.01), (1.0, 0.04)):
        work = server_round(seeded(), learning_rate=learning_rate)
        work.context.generator.manual_seed(3)
        update(batches=2, rate=rate)(work, before_of(work))
        ends.append(work.tensors() | work.network.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1]) and ends[0].keys() == ends[1].keys()
    assert not torch.equal(ends[0]["encoder.first.weight"], ends[2]["encoder.first.weight"])
