"""FedSeg: BackCE and the contrast against scalar loops, and what the prototypes say."""

import copy
import math

import pytest
import torch

from shared_components.core.method import Models, Update, load_method
from shared_components.core.partition import Partition, Role, cut, partition_network
from shared_components.methods import fedseg
from tests.federation.conftest import make_job
from tests.methods.toys import context, frames


def scalar_back_ce(logits, label):
    """The definition, pixel by pixel."""
    B, C, H, W = logits.shape
    present = {int(v) for v in label.flatten()} - {255}
    total, count = 0.0, 0
    for b in range(B):
        for y in range(H):
            for x in range(W):
                weights = [math.exp(float(logits[b, c, y, x])) for c in range(C)]
                shares = [w / sum(weights) for w in weights]
                truth = int(label[b, y, x])
                if truth == 255 and len(present) == C:
                    continue
                background = shares[0] + sum(shares[c] for c in range(1, C) if c not in present)
                chosen = background if truth in (0, 255) else shares[truth]
                total -= math.log(chosen + 1e-7)
                count += 1
    return total / count


@pytest.mark.parametrize("classes", [
    (0, 1, 2, 3), (0, 2), (2,), (1, 2, 3), (0, 2, 255), (1, 2, 3, 255), (0, 1, 2, 3, 255), (255,),
])  # fmt: skip
def test_back_ce_is_the_definition_pixel_by_pixel(classes):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 4, 3, 4, generator=generator)
    label = torch.tensor(classes)[torch.randint(0, len(classes), (2, 3, 4), generator=generator)]
    assert {int(v) for v in label.flatten()} == set(classes)
    expected = pytest.approx(scalar_back_ce(logits, label), rel=1e-5, abs=1e-6)
    assert fedseg.background_cross_entropy(logits, label).item() == expected


def test_the_contrast_has_only_prototypes_of_other_classes_in_the_denominator():
    features = torch.tensor([[1.0, 0.0]])
    prototypes = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]])
    found = fedseg.pixel_contrast(features, torch.tensor([1]), prototypes, torch.tensor([0, 1, 1]), 0.5)
    other, first, second = (math.exp(c / 0.5) for c in (0.0, 1.0, 0.6))
    expected = -(math.log(first / (first + other)) + math.log(second / (second + other))) / 2
    assert found.item() == pytest.approx(expected, rel=1e-6)
    prototypes, classes = torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)
    found = fedseg.pixel_contrast(torch.eye(3), torch.arange(3), prototypes, classes, 0.07)
    assert found.item() == pytest.approx(math.log1p(8 * math.exp(-1 / 0.07)), abs=1e-7) and found < 6e-6
    features = torch.tensor([[0.6, 0.8]], requires_grad=True)
    found = fedseg.pixel_contrast(features, torch.tensor([0]), torch.eye(2), torch.tensor([0, 0]), 0.07)
    found.backward()
    assert found == 0 and features.grad.tolist() == [[0.0, 0.0]]
    prototypes, classes = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    both = fedseg.pixel_contrast(torch.eye(2), torch.tensor([0, 3]), prototypes, classes, 1.0)
    assert torch.equal(both, fedseg.pixel_contrast(torch.eye(2)[:1], torch.tensor([0]), prototypes, classes, 1.0))
    assert fedseg.pixel_contrast(torch.eye(2), torch.tensor([3, 3]), prototypes, classes, 1.0) == 0


def anchors(labels, prototype_labels, count, seed=0):
    labels, prototype_labels = torch.tensor(labels), torch.tensor(prototype_labels)
    return fedseg.balanced_anchors(labels, prototype_labels, count, torch.Generator().manual_seed(seed))


def test_anchors_are_balanced_over_classes_with_a_prototype_and_drawn_by_the_generator():
    labels = [0] * 60 + [1] * 30 + [2] * 2
    chosen = anchors(labels, [0, 1, 2], 30)
    assert torch.tensor(labels)[chosen].bincount().tolist() == [10, 10, 2]
    assert len(chosen.unique()) == len(chosen)
    chosen = anchors([0] * 9 + [1] * 9 + [3] * 9, [0, 1, 1], 8)
    assert sorted(chosen // 9) == [0] * 4 + [1] * 4 and len(anchors([3, 3], [0, 1], 8)) == 0
    labels = [0] * 50 + [1] * 50
    assert sorted(anchors(labels, [0, 1], 1) // 50) == [0, 1]
    same, again, other = (anchors(labels, [0, 1], 20, seed) for seed in (1, 1, 2))
    assert torch.equal(same, again) and not torch.equal(same, other)


def context_of(network, **known):
    received = cut(network.state_dict(), partition_network(network, load_method("fedseg").partition), Role.GLOBAL)
    return context(1, received=received, **known)


def test_prototypes_are_class_means_under_the_received_model(network):
    partition = partition_network(network, load_method("fedseg").partition)
    batch = {"image": torch.rand(2, 3, 32, 32), "label": torch.zeros(2, 32, 32, dtype=torch.long)}
    batch["label"][:, :16] = 2
    known = context_of(network)
    moved = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(1.0)
    found = fedseg.measure_prototypes(moved, [batch], known, partition)["prototypes"]
    assert found["present"].tolist() == [1, 0, 1, 0]
    with torch.no_grad():
        _, features = network.forward_features(batch["image"])
    pixels, labels = fedseg.flat_pixels(features, batch["label"])
    for c in (0, 2):
        mean = [sum(float(p[d]) for p in pixels[labels == c]) / int((labels == c).sum()) for d in range(128)]
        length = math.sqrt(sum(v * v for v in mean))
        assert found["mean"][c].tolist() == pytest.approx([v / length for v in mean], abs=1e-5)
    assert found["mean"][1].abs().sum() == 0


def test_the_server_sends_all_prototypes_in_site_order_beside_the_networks_own_logits(network):
    image = torch.rand(1, 3, 32, 64)
    logits, features = network.forward_features(image)
    assert torch.equal(logits, network(image)) and features.shape == (1, 128, 8, 16)
    group = [{"mean": torch.full((2, 3), float(i)), "present": torch.tensor([1.0, float(i)])} for i in range(2)]
    updates = [Update(s, 0, {"w": torch.ones(1)}, {"prototypes": g}) for s, g in zip(("a", "b"), group, strict=True)]
    result = fedseg.WithPrototypes().apply({}, Partition(()), Models({"w": torch.ones(1)}, {}), updates[::-1])
    rows, classes = fedseg.gathered(result.models.broadcast["prototypes"])
    assert classes.tolist() == [0, 0, 1] and rows[:, 0].tolist() == [0, 1, 1]


def test_weight_zero_and_the_first_round_leave_back_ce_alone(network):
    sent = {"0/mean": torch.nn.functional.normalize(torch.randn(4, 128), dim=1), "0/present": torch.ones(4)}
    first, later = context_of(network), context_of(network, broadcast={"prototypes": sent})
    for weight, known, names in ((0.0, later, []), (1.0, later, ["contrast"]), (1.0, first, [])):
        terms = load_method("fedseg", weight=weight).local.objective(network, frames(count=1), known)
        assert [term.name for term in terms] == ["segmentation", *names]


@pytest.mark.parametrize(("group", "words"), [
    ({"mean": torch.zeros(4, 128)}, "prototypes are 'mean' and 'present'"),
    ({"mean": torch.zeros(4, 128), "present": torch.zeros(3)}, "expected"),
    ({"mean": torch.zeros(4, 100_000), "present": torch.zeros(4)}, "expected"),
    ({"mean": torch.zeros(5, 128), "present": torch.zeros(5)}, "expected"),
    ({"mean": torch.zeros(4, 5), "present": torch.zeros(4)}, r"mean is \(4, 5\), .* \(4, 128\), \(4,\)"),
    ({"mean": torch.ones(4, 128), "present": torch.ones(4)}, "it has a prototype of length 11.31; the length"),
])  # fmt: skip
def test_what_is_no_prototype_per_class_does_not_leave(group, words):
    with pytest.raises(ValueError, match=words):
        fedseg.check_prototypes(group, {"head_global.weight": torch.zeros(4, 128, 1, 1)})


def test_of_a_layer_that_is_not_shared_an_empty_group_is_refused_and_bfloat16_rounds_no_prototype_away():
    with pytest.raises(ValueError, match="expected"):
        fedseg.check_prototypes({"mean": torch.zeros(0, 128), "present": torch.zeros(0)}, {})
    for width in (1, 2, 3, 7, 128):
        mean = torch.nn.functional.normalize(torch.ones(1, width)).bfloat16().float()
        fedseg.check_prototypes({"mean": mean, "present": torch.ones(1)}, {})


@pytest.mark.slow
def test_the_second_round_contrasts_and_its_traffic_is_counted(federate):
    federation = federate(make_job("fedseg", arguments={"prototype_images": 2})).run()
    records = [r for r in federation.server.records if r["kind"] == "site"]
    assert ["contrast" in record["loss"] for record in records] == [False] * 3 + [True] * 3
    assert records[0]["bytes"]["up"]["prototypes"] == (4 * 128 + 4) * 4
    assert records[3]["bytes"]["down"]["prototypes"] == 3 * (4 * 128 + 4) * 4
