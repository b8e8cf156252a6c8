"""FedSeg: BackCE and the contrast against scalar loops, and what the prototypes say."""

import copy
import math

import pytest
import torch

from shared_components.bundle_config import build_network, load_bundle
from shared_components.losses import segmentation_loss
from shared_components.method import Context, Models, Update, load_method
from shared_components.methods.fedseg import (
    WithPrototypes,
    background_cross_entropy,
    check_prototypes,
    flat_pixels,
    gathered,
    measure_prototypes,
    pixel_contrast,
)
from shared_components.partition import Partition, Role, cut, partition_network

from ..federation.conftest import federate, make_job, scenes  # noqa: F401 (fixtures)


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
                chosen = (
                    sum(shares[c] for c in range(C) if c not in present) if truth == 255 else shares[truth]
                )
                total -= math.log(chosen + 1e-7)
                count += 1
    return total / count


@pytest.mark.parametrize("classes", [(0, 1, 2, 3), (0, 2), (0, 2, 255), (0, 1, 2, 3, 255)])
def test_back_ce_is_the_definition_pixel_by_pixel(classes):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 4, 3, 4, generator=generator)
    label = torch.tensor(classes)[torch.randint(0, len(classes), (2, 3, 4), generator=generator)]
    assert {int(v) for v in label.flatten()} == set(classes)
    assert background_cross_entropy(logits, label).item() == pytest.approx(
        scalar_back_ce(logits, label), rel=1e-5
    )


def test_back_ce_with_all_classes_is_cross_entropy_and_without_any_label_is_zero():
    logits = torch.randn(1, 2, 1, 2)
    label = torch.tensor([[[0, 1]]])
    expected = torch.nn.functional.cross_entropy(logits, label)
    torch.testing.assert_close(background_cross_entropy(logits, label), expected, rtol=1e-5, atol=1e-5)
    only_ignored = torch.full((1, 1, 2), 255)
    assert background_cross_entropy(logits, only_ignored).item() == pytest.approx(0, abs=1e-5)


def test_the_contrast_is_the_share_of_the_pixels_own_prototypes():
    """One pixel of class 1; prototypes of class 0 (cosine 0), and of class 1 at two sites (cosines 1 and 0.6)."""
    features = torch.tensor([[1.0, 0.0]])
    prototypes = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]])
    found = pixel_contrast(features, torch.tensor([1]), prototypes, torch.tensor([0, 1, 1]), 0.5)
    exponentials = [math.exp(c / 0.5) for c in (0.0, 1.0, 0.6)]
    expected = (
        -(math.log(exponentials[1] / sum(exponentials)) + math.log(exponentials[2] / sum(exponentials))) / 2
    )
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_pixels_whose_class_has_no_prototype_do_not_count():
    prototypes, classes = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    both = pixel_contrast(torch.eye(2), torch.tensor([0, 3]), prototypes, classes, 1.0)
    alone = pixel_contrast(torch.eye(2)[:1], torch.tensor([0]), prototypes, classes, 1.0)
    assert torch.equal(both, alone)
    assert pixel_contrast(torch.eye(2), torch.tensor([3, 3]), prototypes, classes, 1.0) == 0


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return build_network(load_bundle("pvt_fpn").network)


def context_of(network, **known):
    received = cut(network.state_dict(), partition_network(network, load_method("fedseg").rule), Role.GLOBAL)
    return Context(1, segmentation_loss, torch.Generator().manual_seed(0), received=received, **known)


def test_prototypes_are_class_means_under_the_received_model(network):
    partition = partition_network(network, load_method("fedseg").rule)
    batch = {"image": torch.rand(2, 3, 32, 32), "label": torch.zeros(2, 32, 32, dtype=torch.long)}
    batch["label"][:, :16] = 2
    context = context_of(network)
    moved = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(1.0)
    found = measure_prototypes(moved, [batch], context, partition)["prototypes"]
    assert found["present"].tolist() == [1, 0, 1, 0]
    with torch.no_grad():
        _, features = copy.deepcopy(network).eval().forward_features(batch["image"])
    pixels, labels = flat_pixels(features, batch["label"])
    for c in (0, 2):
        mean = [sum(float(p[d]) for p in pixels[labels == c]) / int((labels == c).sum()) for d in range(128)]
        length = math.sqrt(sum(v * v for v in mean))
        assert found["mean"][c].tolist() == pytest.approx([v / length for v in mean], abs=1e-5)
    assert found["mean"][1].abs().sum() == 0


def test_the_logits_beside_the_features_are_the_networks_own(network):
    image = torch.rand(1, 3, 32, 64)
    still = copy.deepcopy(network).eval()
    logits, features = still.forward_features(image)
    assert torch.equal(logits, still(image)) and features.shape == (1, 128, 8, 16)


def test_the_server_sends_every_sites_prototypes_to_all_in_the_sites_order():
    group = [
        {"mean": torch.full((2, 3), float(i)), "present": torch.tensor([1.0, float(i)])} for i in range(2)
    ]
    updates = [
        Update(s, 0, {"w": torch.ones(1)}, {"prototypes": g}) for s, g in zip(("a", "b"), group, strict=True)
    ]
    result = WithPrototypes().apply({}, Partition(()), Models({"w": torch.ones(1)}, {}), updates[::-1])
    rows, classes = gathered(result.models.broadcast["prototypes"])
    assert classes.tolist() == [0, 0, 1] and rows[:, 0].tolist() == [0, 1, 1]


def test_weight_zero_and_the_first_round_leave_back_ce_alone(network):
    batch = {"image": torch.rand(1, 3, 32, 32), "label": torch.randint(0, 4, (1, 32, 32))}
    sent = {"0/mean": torch.nn.functional.normalize(torch.randn(4, 128), dim=1), "0/present": torch.ones(4)}
    still = copy.deepcopy(network).eval()
    known = context_of(network, broadcast={"prototypes": sent})
    names = {
        weight: [t.name for t in load_method("fedseg", weight=weight).objective(still, batch, known)]
        for weight in (0.0, 1.0)
    }
    assert names == {0.0: ["segmentation"], 1.0: ["segmentation", "contrast"]}
    assert [t.name for t in load_method("fedseg").objective(still, batch, context_of(network))] == [
        "segmentation"
    ]


@pytest.mark.parametrize(
    "group",
    [
        {"mean": torch.zeros(4, 128)},
        {"mean": torch.zeros(4, 128), "present": torch.zeros(3)},
        {"mean": torch.zeros(4, 100_000), "present": torch.zeros(4)},
        {"mean": torch.zeros(5, 128), "present": torch.zeros(5)},
    ],
)
def test_what_is_no_prototype_per_class_does_not_leave(group):
    with pytest.raises(ValueError):
        check_prototypes(group, {"head_global.bias": torch.zeros(4)})


def test_the_second_round_contrasts_and_its_traffic_is_counted(federate):  # noqa: F811
    federation = federate(make_job("fedseg", arguments={"prototype_images": 2})).run()
    records = [r for r in federation.server.records if r["kind"] == "site"]
    assert ["contrast" in record["loss"] for record in records] == [False] * 3 + [True] * 3
    assert records[0]["bytes"]["up"]["prototypes"] == (4 * 128 + 4) * 4
    assert records[3]["bytes"]["down"]["prototypes"] == 3 * (4 * 128 + 4) * 4


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0.0}, {"weight": -1.0}, {"anchors": 0}, {"prototype_images": 0}]
)
def test_wrong_arguments_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=f"fedseg: .*{next(iter(wrong))}"):
        load_method("fedseg", **wrong)
