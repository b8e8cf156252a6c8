"""SERQ: its training against a loop by hand, and what it must not change."""

import copy
from functools import partial

import pytest
import torch

from shared_components.core.partition import Role, Slice, below, cut
from shared_components.core.serq import FineTuning, Quantification
from shared_components.core.serq_equations import FramesAlone
from shared_components.core.task import make_task
from shared_components.networks.parts import freeze
from shared_components.networks.protocols import Encodes, require
from shared_components.networks.pvt_fpn import PvtFpn
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from shared_components.networks.tiny import Tiny
from tests.core.serq_rounds import CLASSES, Round, Set, before_of, seeded, server_round
from tests.federation.conftest import same


@pytest.mark.parametrize("other", [Tiny, PvtFpn])
def test_a_network_that_does_not_predict_from_its_encoders_maps_is_refused(other):
    """PvtFpn has both names, but its decode takes two halves."""
    require(PvtFpnClips(), Encodes, "fedst")
    with pytest.raises(ValueError, match=f"fedst needs a network that predicts .* {other.__name__} does not qualify: "):
        require(other(), Encodes, "fedst")
    work = server_round(other(out_channels=len(CLASSES)))
    for update in (Quantification(), FineTuning()):
        with pytest.raises(
            ValueError, match=f"serq needs a network that predicts .* {other.__name__} does not qualify"
        ):
            update(work, before_of(work))


def by_hand(network, data, *, rounds, pretraining, batches, alpha, first_weight, second_weight, rate):
    """Section 3.3 as a plain loop with two plain optimizers; yields what each round ends with."""
    loss = make_task("segmentation", classes=CLASSES).loss
    teacher, average, D = copy.deepcopy(network), None, torch.zeros(4, 2, 4)
    of_teacher, of_student = (
        torch.optim.AdamW([*one.encoder.parameters(), *one.head.parameters()], lr=lr, weight_decay=0.01)
        for one, lr in ((teacher, 0.03), (network, 0.01))
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
            (loss(network.decode(maps), data.batch(n)) + second_weight / D.numel() * off).backward()
            of_student.step()
        yield copy.deepcopy(network.state_dict()), copy.deepcopy(teacher.state_dict()), D, average


def test_two_rounds_are_those_of_a_loop_by_hand():
    """The server's site.yaml has no validation split: pre-training takes all of its batches."""
    serq = Quantification(
        rate=1.0, batches=3, pretraining=2, average=0.75, descriptor_weight=4.0, representation_weight=6.0,
        pretraining_rate=3.0, descriptor_rate=0.3,
    )  # fmt: skip
    work = server_round(seeded())
    numbers = {"alpha": 0.75, "first_weight": 4.0, "second_weight": 6.0, "rate": 0.3}
    expected = by_hand(seeded(), work.dataset, rounds=2, pretraining=2, batches=3, **numbers)
    for number, (shared, pretrained, descriptor, average) in enumerate(expected):
        after, losses = serq(work, before_of(work))
        tensors = work.tensors()
        torch.testing.assert_close(after.models.shared, dict(shared), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(below("memory/pretrained/", tensors), dict(pretrained), rtol=1e-4, atol=1e-6)
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
        work = server_round(work.network, kept=tensors, memory=below("memory/", tensors), round=1)


def said_of(caplog, work=None, **arguments):
    work = work or server_round(seeded())
    serq = Quantification(batches=2, pretraining=2, pretraining_rate=5.0, **arguments)
    caplog.clear()
    with caplog.at_level("WARNING", logger="shared_components.core.serq"):
        serq(work, before_of(work))
    return [record.getMessage() for record in caplog.records if "descriptor" in record.getMessage()]


def test_a_descriptor_that_stands_still_or_adds_to_the_distance_is_warned_of(caplog):
    assert said_of(caplog, rate=1e-9) == said_of(caplog, descriptor_rate=0) == []
    first = server_round(seeded())
    Quantification(batches=2, pretraining=2)(first, before_of(first))
    noise = 0.02 * torch.randn(4, 2, 4, generator=torch.Generator().manual_seed(1))
    memory = {**first.context.memory, "descriptor": noise}
    said = said_of(caplog, server_round(seeded(), memory=memory), descriptor_rate=1e-6)
    assert "the domain descriptor changed only by " in said[0]
    first = server_round(seeded())
    Quantification(batches=2, pretraining=0)(first, before_of(first))
    memory = {**first.context.memory, "descriptor": torch.full((4, 2, 4), 5.0)}
    (said,) = said_of(caplog, server_round(seeded(), memory=memory), descriptor_rate=0.01)
    assert "the domain descriptor explains nothing: the mean squared distance of " in said


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


def test_the_pretraining_ends_at_its_budget_or_when_validation_stops_rising(caplog):
    work = scored(0.1, 0.3, 0.2, 0.2, 0.2, 0.3)
    after, losses = Quantification(batches=1, rate=0.5, pretraining_rate=2.0)(work, before_of(work))
    assert work.rates == [(25, 2.0)] * 5 + [(1, 0.5)] * 2
    report = after.report["serq"]
    assert (report["pretraining_batches"], report["pretraining_before"], report["pretraining_best"]) == (125, 0.1, 0.3)
    assert after.report["seconds_pretraining"] > 0 and "pretraining segmentation" in losses
    work = scored(*(n / 10 for n in range(9)))
    Quantification(batches=1, pretraining=60)(work, before_of(work))
    assert [count for count, _ in work.rates] == [25, 25, 10, 1, 1]
    work = server_round(seeded())
    after, _ = Quantification(batches=1, pretraining=30)(work, before_of(work))
    (said,) = [record.getMessage() for record in caplog.records if "validation" in record.getMessage()]
    assert "no validation split, so pre-training used all 30 batches" in said
    assert after.report["serq"]["pretraining_batches"] == 30 and "pretraining_best" not in after.report["serq"]


def test_in_bf16_the_distances_and_the_memory_stay_float32():
    plain, short = (server_round(seeded(), precision=precision) for precision in ("float32", "bf16"))
    serq = Quantification(batches=2, pretraining=1)
    (_, exact), (_, rounded) = serq(plain, before_of(plain)), serq(short, before_of(short))
    assert exact != rounded
    assert all(rounded[name] == pytest.approx(value, rel=0.05) for name, value in exact.items())
    assert {v.dtype for v in short.context.memory.values()} == {torch.float32, torch.int64}


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
    before = cut(state, work.partition, Role.GLOBAL)
    rest = cut(work.network.state_dict(), work.partition, Role.LOCAL, Role.MIXED)
    assert len(rest) == 8  # two halves, five of the normalisation, one bias
    for name, value in cut(state, work.partition, Role.LOCAL, Role.MIXED).items():
        assert torch.equal(rest[name], value), name
    assert work.network.encoder.norm.weight.grad is None and work.network.head.bias.grad is None
    assert set(after.models.shared) == set(work.partition.with_roles(Role.GLOBAL))
    assert all(torch.equal(after.models.shared[name], state[name]) for name in ("temporal.weight", "temporal.bias"))
    for name in ("encoder.first.weight", "encoder.last.weight[2:4]", "head.weight"):
        assert not torch.equal(after.models.shared[name], before[name]), name


def test_other_slices_are_the_same_in_every_step_and_only_the_last_frame_of_a_clip_counts():
    seen = []
    work = server_round(seeded(), two_roles, weight_decay=10.0)
    work.network.encoder.last.register_forward_pre_hook(
        lambda module, _: seen.append(module.weight[:2].detach().clone())
    )
    FineTuning(3)(work, before_of(work))
    assert len(seen) == 3 and all(torch.equal(value, seen[0]) for value in seen)
    results = []
    for last_only in (False, True):
        work = server_round(seeded(), frames=3)
        work.last_only = last_only
        after, losses = Quantification(batches=2, pretraining=1)(work, before_of(work))
        results.append((after.models.shared, losses))
    assert results[0][1] == results[1][1] and same(results[0][0], results[1][0])


def test_weights_of_zero_drop_their_terms():
    work = server_round(seeded())
    serq = Quantification(batches=2, pretraining=0, descriptor_weight=0, representation_weight=0.0)
    after, losses = serq(work, before_of(work))
    assert set(losses) == {"pretrained segmentation", "global segmentation"}
    assert after.report["serq"]["descriptor_square"] == after.report["serq"]["descriptor_moved"] == 0
    assert not work.context.memory["descriptor"].any()
    tuned, quantified = server_round(seeded()), server_round(seeded())
    serq = Quantification(batches=3, pretraining=0, representation_weight=0)
    one, _ = FineTuning(3)(tuned, before_of(tuned))
    other, _ = serq(quantified, before_of(quantified))
    assert same(one.models.shared, other.models.shared)
    assert not torch.equal(one.models.shared["head.bias"], seeded().head.bias)


def test_a_fixed_encoder_stays_in_both_models_and_has_no_domain():
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
    network = seeded()
    freeze(network, ["encoder"])
    work = server_round(network)
    work.dataset = Set((8, 16), count=2)
    serq = Quantification(batches=20, pretraining=0, rate=1.0, descriptor_rate=1.0)
    report = serq(work, before_of(work))[0].report["serq"]
    assert report["descriptor_square"] < 1e-12 and report["difference_square"] == 0


def test_a_network_without_anything_to_train_or_frames_of_another_size_are_refused():
    network = seeded()
    freeze(network, ["encoder", "head"])
    work = server_round(network)
    with pytest.raises(ValueError, match=r"serq: training\.fixed has all parts that predict .*name fewer parts"):
        FineTuning(1)(work, before_of(work))
    work = server_round(seeded())
    Quantification(batches=1, pretraining=0)(work, before_of(work))
    other = server_round(seeded(), size=(16, 16), memory=work.context.memory)
    words = r"serq: the descriptor .* is \(4, 2, 4\), .* maps of \(4, 4, 4\); .*start a new run$"
    with pytest.raises(ValueError, match=words):
        Quantification(batches=1, pretraining=0)(other, before_of(other))


@pytest.mark.parametrize("update", [partial(Quantification, pretraining=0), FineTuning])
def test_a_rate_is_a_multiple_of_the_jobs_learning_rate(update):
    """Where the server alone trains, a share of a rate is that rate written down; other rates end elsewhere."""
    ends = []
    for rate, learning_rate in ((0.25, 0.04), (1.0, 0.01), (1.0, 0.04)):
        work = server_round(seeded(), learning_rate=learning_rate)
        work.context.generator.manual_seed(3)
        update(batches=2, rate=rate)(work, before_of(work))
        ends.append(work.tensors() | work.network.state_dict())
    assert same(ends[0], ends[1])
    assert not torch.equal(ends[0]["encoder.first.weight"], ends[2]["encoder.first.weight"])
