"""Gradient inversion of a known input, and its measures, by hand and against other libraries."""

import math

import numpy as np
import pytest
import torch
from monai.metrics.regression import SSIMMetric
from scipy.stats import mannwhitneyu
from torch import nn

from evidence.attacks import inversion
from evidence.attacks.inversion import cosine, invert, invert_round, loss_of, true_gradient
from evidence.attacks.measures import auc, auc_interval, matched, psnr, ssim
from evidence.attacks.membership import losses
from evidence.attacks.sent import joined, train_round
from shared_components.core.method import load_method
from shared_components.core.partition import Role
from shared_components.core.task import make_task
from shared_components.core.training_settings import Training
from shared_components.data.dataset import SampleDataset
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.networks.tiny import Tiny
from shared_components.scenes.site import write_site

PARTS = ("background", "shaft", "wrist", "clasper")
TRAINING = Training(height=16, width=24, batch_size=1, iterations=1, learning_rate=1e-3)


@pytest.fixture
def layer():
    """A linear layer of 12 inputs and 5 outputs, an image of 3 x 2 x 2, and the loss and gradient of one label."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    image = torch.rand(1, 3, 2, 2)

    def loss(images):
        return nn.functional.cross_entropy(network(images), torch.tensor([2]))

    gradients = torch.autograd.grad(loss(image), list(network.parameters()))

    def inverted(gradients, iterations, **options):
        start = torch.full_like(image, 0.5)
        return invert(network, loss, gradients, start=start, iterations=iterations, variation=0.0, **options)

    return inverted, image, dict(zip(("1.weight", "1.bias"), gradients, strict=True))


def test_inversion_by_optimisation_converges_to_the_input(layer):
    inverted, image, gradients = layer
    result, similarity = inverted(gradients, 1500, rate=0.05)
    assert similarity > 0.99999
    torch.testing.assert_close(result, image, atol=0.02, rtol=0)


def test_inversion_of_signs_finds_an_input_that_explains_them_as_well_as_the_true_input(layer):
    inverted, _, gradients = layer
    signs = {name: value.sign() for name, value in gradients.items()}
    _, similarity = inverted(signs, 300, rate=0.05, soften=0.3)
    true = [inversion._soft_sign(gradient, 0.3) for gradient in gradients.values()]
    assert similarity >= float(cosine(true, list(signs.values()))) - 1e-3


def test_inversion_of_an_unrelated_gradient_finds_nothing(layer):
    inverted, image, gradients = layer
    torch.manual_seed(5)
    other = {name: torch.randn_like(value) for name, value in gradients.items()}
    assert psnr(inverted(other, 300)[0], image) < 15


def test_soft_signs_cosine_and_total_variation_by_hand():
    """The root mean square of (3, -4, 0, 0) is 2.5; softened once, 3 becomes 3 / 5.5 and -4 becomes -4 / 6.5."""
    signs = inversion._soft_sign(torch.tensor([3.0, -4.0, 0.0, 0.0]), 1.0)
    assert signs.tolist() == pytest.approx([3 / 5.5, -4 / 6.5, 0.0, 0.0])
    assert float(inversion._soft_sign(torch.tensor([2.0]), 1.0)) == pytest.approx(0.5)
    pair = [torch.tensor([3.0]), torch.tensor([[4.0]])], [torch.tensor([4.0]), torch.tensor([[3.0]])]
    assert float(cosine(*pair)) == pytest.approx(24 / 25)
    image = torch.tensor([[[[0.0, 1.0], [0.5, 0.5]]]])  # across 1 and 0, down 0.5 and 0.5
    assert float(inversion.total_variation(image)) == pytest.approx(0.5 + 0.5)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    sizes = {"videos": {"train": 1}, "frames_per_video": 4, "height": 64, "width": 96}
    site = load_site(write_site(tmp_path_factory.mktemp("scenes") / "a", look="rose", seed=1, **sizes))
    return SampleDataset(samples(site, "train"), height=16, width=24, site=site)


@pytest.fixture
def sent(dataset):
    torch.manual_seed(0)
    network = Tiny(out_channels=4, dropout=0.0)
    return train_round(network, load_method("fedper"), make_task("segmentation", classes=PARTS), dataset, TRAINING)


def test_one_step_reveals_the_sign_of_the_gradient(sent):
    gradient, direction = true_gradient(sent), sent.direction()
    for name, value in gradient.items():
        clear = value.abs() > 1e-5  # AdamW's epsilon is 1e-8, and changes are differences of float32
        torch.testing.assert_close(direction[name][clear], value[clear].sign(), atol=0.02, rtol=0)


def test_masks_are_the_roles_and_make_up_the_whole(sent):
    shared, own = sent.masks(Role.GLOBAL), sent.masks(Role.LOCAL)
    assert set(shared) == {name for name, _ in sent.before.named_parameters()}
    for name in shared:
        assert bool((shared[name] + own[name] == 1).all())
        assert bool(own[name].all()) == name.startswith(("decoder", "head"))
    ones, zeros = ({n: torch.full_like(v, one) for n, v in sent.after.items()} for one in (1, 0))
    halves = joined(ones, zeros, own)
    assert bool(halves["head.bias"].all()) and not bool(halves["encoder.0.weight"].any())


def test_the_hidden_personal_part_has_no_influence(sent):
    masks = sent.masks(Role.GLOBAL)
    whole = sent.direction()
    other = {name: torch.where(masks[name] > 0, value, value + 7) for name, value in whole.items()}
    first = invert_round(sent, masks, iterations=5, direction=whole)
    second = invert_round(sent, masks, iterations=5, direction=other)
    assert torch.equal(first[0], second[0]) and first[1] == second[1]
    assert not torch.equal(first[0], invert_round(sent, sent.masks(Role.LOCAL), iterations=5, direction=other)[0])


def test_the_true_frame_has_the_true_gradient(sent):
    batch = sent.batches[0]
    assert len(sent.batches) == 1 and batch["image"].shape == (1, 3, 16, 24)
    names, values = zip(*sent.before.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss_of(sent, batch)(batch["image"]), values)
    expected = true_gradient(sent)
    assert float(cosine(gradients, [expected[name] for name in names])) == pytest.approx(1.0, abs=1e-5)


def test_losses_belong_to_the_given_state_and_do_not_change_the_network(sent, dataset):
    before = {name: value.clone() for name, value in sent.before.state_dict().items()}
    own = losses(sent.before, before, sent.task, dataset)
    assert len(own) == len(dataset) == 4 and own != losses(sent.before, sent.after, sent.task, dataset)
    assert all(torch.equal(before[name], value) for name, value in sent.before.state_dict().items())


def test_psnr_by_hand():
    """An error of 0.1 everywhere is 20 dB, of 0.5 on a quarter of the pixels 10 log10(16)."""
    black = torch.zeros(3, 4, 4)
    assert psnr(black, black + 0.1) == pytest.approx(20, abs=1e-5)
    quarter = black.clone()
    quarter[:, :2, :2] = 0.5
    assert psnr(black, quarter) == pytest.approx(10 * math.log10(16), abs=1e-9)
    assert psnr(black, black) == math.inf


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
def test_ssim_equals_monais(noise):
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(3, 24, 32, generator=generator)
    b = (a + noise * torch.randn(3, 24, 32, generator=generator)).clamp(0, 1)
    other = float(SSIMMetric(spatial_dims=2, data_range=1.0)(a[None].double(), b[None].double()))
    assert ssim(a, b) == pytest.approx(other, abs=1e-5)
    assert noise or ssim(a, b) == pytest.approx(1.0)


def test_a_batch_in_another_order_is_restored_to_its_order():
    true = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    order = [2, 0, 3, 1]
    assert torch.equal(matched(true[order], true), true)
    assert torch.equal(matched((true[order] + 0.01).clamp(0, 1), true), (true + 0.01).clamp(0, 1))


def test_auc_equals_the_statistic_of_mann_and_whitney():
    generator = np.random.default_rng(3)
    a, b = generator.integers(0, 9, 17), generator.integers(2, 12, 23)
    assert auc(a.tolist(), b.tolist()) == pytest.approx(mannwhitneyu(b, a).statistic / (17 * 23), abs=1e-12)
    assert auc([0.0, 0.1], [1.0, 2.0]) == 1.0 and auc([1.0], [1.0]) == 0.5


def test_the_interval_contains_the_value_and_is_reproducible():
    generator = np.random.default_rng(0)
    a, b = generator.normal(0, 1, 40).tolist(), generator.normal(1, 1, 40).tolist()
    low, high = auc_interval(a, b)
    assert low < auc(a, b) < high and (low, high) == auc_interval(a, b)
    assert 0.05 < high - low < 0.3
    assert auc_interval([0.0] * 5, [1.0] * 5) == (1.0, 1.0)
