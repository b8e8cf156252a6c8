import math
from itertools import product

import pytest
import torch
from monai.losses import DiceLoss

from shared_components.core import losses
from shared_components.core.losses import IGNORED, consistency_loss, segmentation_loss


def random_case(seed, B=2, C=4, H=3, W=5):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(B, C, H, W, generator=generator)
    label = torch.randint(0, C, (B, H, W), generator=generator)
    return logits, label


def softmax_of(values):
    exponentials = [math.exp(value) for value in values]
    return [value / sum(exponentials) for value in exponentials]


def scalar_segmentation_loss(logits, label):
    """0.7 CE - 0.3 log(mean_c mean_b IoU), written as loops over single pixels."""
    B, C, H, W = logits.shape
    cross_entropy, ious = 0.0, []
    for b in range(B):
        intersection, union = [0.0] * C, [0.0] * C
        for y, x in product(range(H), range(W)):
            true, probability = int(label[b, y, x]), softmax_of(logits[b, :, y, x].tolist())
            cross_entropy -= math.log(probability[true]) / (B * H * W)
            for c in range(C):
                overlap = probability[c] if c == true else 0.0
                intersection[c] += overlap
                union[c] += probability[c] + (c == true) - overlap
        ious += [(i + 1e-15) / (u + 1e-15) for i, u in zip(intersection, union, strict=True)]
    return 0.7 * cross_entropy - 0.3 * math.log(sum(ious) / len(ious))


@pytest.mark.parametrize("seed", range(4))
def test_segmentation_loss_is_the_scalar_loop(seed):
    logits, label = random_case(seed)
    expected = scalar_segmentation_loss(logits, label)
    assert segmentation_loss(logits, label).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("balance", "share"), [(0.0, 0.75), (0.5, 3 / (3 + math.sqrt(3))), (1.0, 0.5)])
def test_balance_weighs_pixels_by_how_rare_their_class_is(balance, share):
    # Four pixels, three of class 0, all with logits (2, 0, 0): -log p is a for class 0, a + 2 for class 1. The weights
    # of a pixel are (3/4, 1/4) to the power of -balance; together class 0 has `share`. Class 2 is not there.
    logits = torch.zeros(1, 3, 1, 4)
    logits[:, 0] = 2
    label = torch.tensor([[[0, 0, 0, 1]]])
    expected = math.log(math.exp(2) + 2) - 2 + 2 * (1 - share)
    found = segmentation_loss(logits, label, cross_entropy=1.0, log_iou=0.0, balance=balance)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_segmentation_loss_is_finite_for_an_entirely_wrong_prediction():
    label = torch.zeros(1, 2, 2, dtype=torch.int64)
    logits = torch.tensor([-300.0, 300.0]).view(1, 2, 1, 1).repeat(1, 1, 2, 2).requires_grad_()
    loss = segmentation_loss(logits, label)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logits.grad).all() and logits.grad.abs().sum() > 0


def test_segmentation_loss_weights_select_its_terms_and_the_dice_term_is_monais():
    logits, label = random_case(1)
    only_ce = segmentation_loss(logits, label, cross_entropy=1.0, log_iou=0.0)
    assert only_ce.item() == pytest.approx(torch.nn.functional.cross_entropy(logits, label).item())
    only_iou = segmentation_loss(logits, label, cross_entropy=0.0, log_iou=1.0)
    mixed = segmentation_loss(logits, label, cross_entropy=0.25, log_iou=2.0)
    assert mixed.item() == pytest.approx(0.25 * only_ce.item() + 2.0 * only_iou.item(), rel=1e-6)
    logits, label = random_case(5)
    ours = segmentation_loss(logits, label, cross_entropy=0.0, log_iou=0.0, dice=0.5)
    theirs = DiceLoss(softmax=True, to_onehot_y=True)(logits, label[:, None])
    assert float(ours) == pytest.approx(0.5 * float(theirs), abs=1e-6)


def test_segmentation_loss_is_computed_in_float32_and_refuses_a_label_of_another_size():
    logits, label = random_case(3)
    low = logits.bfloat16()
    assert segmentation_loss(low, label).dtype == torch.float32
    assert torch.equal(segmentation_loss(low, label), segmentation_loss(low.float(), label))
    with pytest.raises(ValueError, match=r"\(2, 4, 3, 5\).*\(2, 3, 4\)"):
        segmentation_loss(torch.zeros(2, 4, 3, 5), torch.zeros(2, 3, 4, dtype=torch.int64))


def test_appearance_loss_is_the_mean_squared_error_worked_by_hand_and_refuses_to_broadcast():
    restored = torch.tensor([0.0, 0.5, 1.0]).view(1, 3, 1, 1)
    image = torch.tensor([0.0, 0.0, 0.25]).view(1, 3, 1, 1)
    assert losses.appearance_loss(restored, image).item() == pytest.approx((0.25 + 0.5625) / 3)
    with pytest.raises(ValueError, match=r"\(1, 1, 4, 4\).*\(1, 3, 4, 4\)"):
        losses.appearance_loss(torch.zeros(1, 1, 4, 4), torch.zeros(1, 3, 4, 4))


@pytest.mark.parametrize("seed", range(3))
def test_consistency_loss_is_the_scalar_loop(seed):
    logits, label = random_case(seed)
    B, C, H, W = logits.shape
    total = 0.0
    for b, y, x in product(range(B), range(H), range(W)):
        probability = softmax_of(logits[b, :, y, x].tolist())
        total += sum((p - (c == int(label[b, y, x]))) ** 2 for c, p in enumerate(probability))
    assert consistency_loss(logits, label).item() == pytest.approx(total / (B * C * H * W), rel=1e-5)


def style_case(B=2, K=3):
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(B, 3, 4, 5, generator=generator)
    mean = torch.rand(K, 3, generator=generator)
    std = 0.1 + torch.rand(K, 3, generator=generator)
    return image, mean, std


def test_mixed_style_is_the_scalar_loop_also_under_autocast():
    image, mean, std = style_case()
    weights = torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.1, 0.9]])
    mixed = losses.mix_style(image, mean, std, 2, weights)
    for b, c in product(range(2), range(3)):
        beta, gamma = (sum(float(weights[b, k] * style[k, c]) for k in range(3)) for style in (mean, std))
        expected = gamma * (float(image[b, c, 1, 2]) - float(mean[2, c])) / float(std[2, c]) + beta
        assert mixed[b, c, 1, 2].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = losses.mix_style(image, mean, std, 0, weights)
    assert torch.equal(mixed, losses.mix_style(image, mean, std, 0, weights))


def test_mixed_styles_of_constant_channels_are_finite_and_wrong_shapes_or_sites_are_refused():
    image, mean, std = style_case()
    image[:, 1], mean[0, 1], std[0, 1] = 0.5, 0.5, 0.0
    weights = torch.tensor([[0.5, 0.25, 0.25]]).repeat(2, 1)
    mixed = losses.mix_style(image, mean, std, 0, weights)
    assert torch.isfinite(mixed).all()
    torch.testing.assert_close(mixed[:, 1], torch.full((2, 4, 5), float(weights[0] @ mean[:, 1])))
    image, mean, std = style_case()
    with pytest.raises(ValueError, match=r"weights \(1, 3\).*weights \(2, K\)"):
        losses.mix_style(image, mean, std, 0, torch.ones(1, 3))
    with pytest.raises(ValueError, match="own site 3 is not among the 3 sites"):
        losses.mix_style(image, mean, std, 3, torch.ones(2, 3) / 3)


def test_style_weights_are_convex_follow_the_generator_and_treat_sites_alike():
    for sites in (1, 2, 3, 7):
        weights = losses.sample_style_weights(500, sites, torch.Generator().manual_seed(sites))
        assert weights.shape == (500, sites) and weights.dtype == torch.float32 and (weights >= 0).all()
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(500))
    first = losses.sample_style_weights(8, 3, torch.Generator().manual_seed(5))
    torch.rand(17)  # the global stream has no say
    again = losses.sample_style_weights(8, 3, torch.Generator().manual_seed(5))
    other = losses.sample_style_weights(8, 3, torch.Generator().manual_seed(6))
    assert torch.equal(first, again) and not torch.equal(first, other)
    weights = losses.sample_style_weights(40_000, 3, torch.Generator().manual_seed(1))
    torch.testing.assert_close(weights.mean(dim=0), torch.full((3,), 1 / 3), rtol=0, atol=0.01)
    assert (weights.max(dim=1).values > 0.9).float().mean() > 0.3


def test_beta_draws_follow_the_beta_distribution_function():
    stats = pytest.importorskip("scipy.stats")
    draws = losses._sample_beta(20_000, torch.Generator().manual_seed(3))
    assert draws.dtype == torch.float64 and (draws >= 0).all() and (draws <= 1).all()
    # values within 1e-16 of 1 round to 1, so compare the distribution away from its ends
    for quantile in (1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999):
        expected = stats.beta(0.1, 0.1).cdf(quantile)
        assert (draws <= quantile).double().mean().item() == pytest.approx(expected, abs=0.015)


def unlabelled_beside(logits, label, columns=3):
    """Return both with columns added that nobody labelled, of wild logits."""
    B, C, H, _ = logits.shape
    wild = 50 * torch.randn(B, C, H, columns, generator=torch.Generator().manual_seed(9))
    return torch.cat([logits, wild], 3), torch.cat([label, torch.full((B, H, columns), IGNORED)], 2)


@pytest.mark.parametrize("numbers", [{}, {"dice": 1.0}, {"balance": 0.5}, {"cross_entropy": 1.0, "log_iou": 0.0}])
def test_the_loss_is_that_of_the_labelled_part(numbers):
    logits, label = random_case(1)
    more, beside = unlabelled_beside(logits, label)
    loss = segmentation_loss(more.requires_grad_(), beside, **numbers)
    loss.backward()
    assert loss.item() == pytest.approx(segmentation_loss(logits, label, **numbers).item(), rel=1e-6)
    assert more.grad[..., 5:].abs().max() == 0 and more.grad[..., :5].abs().max() > 0


def test_unlabelled_pixels_add_nothing_to_consistency_means_and_gradients():
    logits, label = random_case(2)
    expected = consistency_loss(logits, label).item()
    assert consistency_loss(*unlabelled_beside(logits, label)).item() == pytest.approx(expected, rel=1e-6)
    logits, label = random_case(3)
    logits.requires_grad_()
    label[:] = IGNORED
    loss = segmentation_loss(logits, label, dice=1.0, balance=1.0) + consistency_loss(logits, label)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6) and logits.grad.abs().max() == 0
    label = torch.tensor([[[0, IGNORED], [1, IGNORED]]])
    assert losses.labelled_mean(torch.tensor([[[1.0, 100.0], [3.0, 100.0]]]), label) == 2
    assert losses.labelled_mean(torch.ones(1, 2, 2), torch.full((1, 2, 2), IGNORED)) == 0
    logits = torch.zeros(1, 2, 2, 2)
    assert losses.pixel_cross_entropy(logits, label).item() == pytest.approx(math.log(2))


def test_surgfeds_loss_of_objects_equals_a_scalar_loop():
    logits, label = random_case(4)
    label[0, 0, 0] = IGNORED
    terms = []
    for b, y, x in product(range(2), range(3), range(5)):
        if label[b, y, x] == IGNORED:
            continue
        for c in (1, 2, 3):
            probability = 1 / (1 + math.exp(-logits[b, c, y, x].item()))
            own = label[b, y, x].item() == c
            terms.append(-2 * math.log(probability) if own else -math.log(1 - probability))
    assert losses.objects_loss(logits, label).item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)
    logits[:, 0] += 5  # the background is no object
    assert losses.objects_loss(logits, label).item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)


def test_a_class_without_a_box_in_its_clip_counts_as_background_there_alone():
    boxes = torch.full((2, 2, 3, 4), math.nan)
    boxes[0, 0, 0] = boxes[0, 1, 2] = boxes[1, 0, 1] = 1.0
    label = torch.tensor([0, 1, 2, 3, IGNORED]).repeat(2, 2, 1)[:, :, None]  # (B, T, 1, 5)
    found = losses.without_unprompted(label, boxes)
    assert found[0, 0, 0].tolist() == [0, 1, 0, 3, IGNORED] and torch.equal(found[0, 0], found[0, 1])
    assert found[1, 0, 0].tolist() == [0, 0, 2, 0, IGNORED]
    assert torch.equal(losses.without_unprompted(label[:, 0], boxes), found[:, 0])
