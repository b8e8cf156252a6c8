"""Reconstruction: hidden patches, the network's input, and errors of hidden pixels."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from shared_components.core.image_patches import MeanColour
from shared_components.core.task import make_task
from shared_components.data.samples import Item
from shared_components.networks.mae_vit import MaeVit
from shared_components.tasks.reconstruction import GREY, Restored

TASK = make_task("reconstruction", {"patch": 4, "hidden": 0.75})


def batch(count=2, height=8, width=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {"image": torch.rand(count, 3, height, width, generator=generator)}


def drawn(seed=0, **size):
    return TASK.add_randomness(batch(**size), torch.Generator().manual_seed(seed))


def test_three_quarters_of_the_patches_are_hidden_in_every_sample_by_the_generator_alone():
    hidden = drawn()["hidden"]
    assert hidden.dtype == torch.bool and hidden.shape == (2, 8, 16)
    patches = hidden.reshape(2, 2, 4, 4, 4).permute(0, 1, 3, 2, 4).reshape(2, 8, 16)
    assert ((patches.sum(2) == 0) | (patches.sum(2) == 16)).all()
    assert (patches.all(2).sum(1) == 6).all()  # of 8
    assert torch.equal(drawn(1)["hidden"], drawn(1)["hidden"])
    assert not torch.equal(drawn(1)["hidden"], drawn(2)["hidden"])
    generator = torch.Generator().manual_seed(1)
    singles = [TASK.add_randomness(batch(count=1), generator)["hidden"] for _ in range(2)]
    assert torch.equal(torch.cat(singles), drawn(1)["hidden"])  # samples do not depend on their batch


class Echo(nn.Module):
    """Returns the image, or the last frame of a clip."""

    def forward(self, image):
        self.seen = image
        return image if image.dim() == 4 else image[:, -1]


def shown(given):
    """Return the network's input and the restored image."""
    network = Echo()
    restored = TASK.predict(network, given)
    return network.seen, restored


def test_the_network_sees_grey_where_patches_are_hidden_and_the_frame_elsewhere():
    given = drawn()
    (seen, _), hidden = shown(given), given["hidden"][:, None].expand(-1, 3, -1, -1)
    assert (seen[hidden] == GREY).all() and torch.equal(seen[~hidden], given["image"][~hidden])


def test_of_a_clip_the_last_frame_is_hidden_and_restored():
    clip = torch.rand(2, 3, 3, 8, 16, generator=torch.Generator().manual_seed(4))
    given = TASK.add_randomness({"image": clip}, torch.Generator().manual_seed(0))
    seen, restored = shown(given)
    assert torch.equal(seen[:, :-1], clip[:, :-1]) and not torch.equal(seen[:, -1], clip[:, -1])
    assert torch.allclose(restored, 1 / (1 + (-seen[:, -1]).exp()))
    expected = ((restored - clip[:, -1]) ** 2).mean(1)[given["hidden"]].mean()
    assert float(TASK.loss(restored, given)) == pytest.approx(float(expected))


def test_a_restored_picture_has_colours_whatever_the_network_says():
    loud = nn.Conv2d(3, 3, 1)
    nn.init.constant_(loud.bias, 100.0)
    assert 0 <= float(TASK.predict(loud, drawn()).min()) <= float(TASK.predict(loud, drawn()).max()) <= 1


def test_the_loss_is_the_mean_over_hidden_pixels_alone():
    given, squares = drawn(), []
    for b, y, x in product(range(2), range(8), range(16)):
        if given["hidden"][b, y, x]:
            squares += [float(given["image"][b, c, y, x]) ** 2 for c in range(3)]
    assert float(TASK.loss(torch.zeros(2, 3, 8, 16), given)) == pytest.approx(sum(squares) / len(squares), rel=1e-5)


def test_scores_are_worked_by_hand_and_visible_pixels_do_not_count():
    """One hidden pixel, off by 51/255 = 0.2: mse 0.04, psnr 10 log10 25."""
    image = np.full((1, 1, 2, 3), 102, np.uint8)
    restored = Restored(np.full((1, 2, 3), 0.6, np.float32), np.array([[True, False]]))
    score = TASK.score(restored, Item(image, {}, "v-1"), quick=False)
    assert score["mse"] == pytest.approx(0.04, rel=1e-5)
    assert score["psnr"] == pytest.approx(10 * math.log10(25), rel=1e-5)


def test_what_is_predicted_as_no_number_is_wrong_and_patches_without_a_score_are_not_counted():
    nothing, hidden = np.full((1, 2, 3), np.nan, np.float32), np.array([[True, False]])
    item = Item(np.zeros((1, 1, 2, 3), np.uint8), {}, "")
    score = TASK.score(Restored(nothing, hidden, np.array([np.nan]), np.array([True])), item, quick=False)
    assert score["mse"] == score["normalised_mse"] == 1 and score["below_300"] == 0
    assert math.isnan(TASK.score(Restored(nothing, hidden), item, quick=False)["below_300"])


def test_existing_networks_are_scored_on_the_same_pixels_and_patches_are_counted_beside():
    given = drawn()
    outputs = given["image"] + 0.05
    outputs[0, :, 4:, :4] += 0.25  # one of the eight patches
    (first, second) = TASK.postprocess(outputs, given, [(8, 16)] * 2)
    items = [Item((picture[None] * 255).astype(np.uint8), {}, "") for picture in (first.image, second.image)]
    scores = [TASK.score(answer, item, quick=True) for answer, item in zip((first, second), items, strict=True)]
    assert [score["below_300"] for score in scores] == [7 / 8, 1.0]  # 0.3 / 0.21 squared is 2, 0.05 / 0.21 squared 0.06
    assert [score["below_100"] for score in scores] == [7 / 8, 1.0]
    assert [score["below_050"] for score in scores] == [0.0, 0.0]
    assert len(first.errors) == 8
    hidden = [bool(given["hidden"][0, 4 * y, 4 * x]) for y in range(2) for x in range(4)]
    assert scores[0]["normalised_mse"] == pytest.approx(first.errors[hidden].mean())


@pytest.fixture(scope="module")
def autoencoder():
    torch.manual_seed(0)
    return MaeVit(size=32).eval()


def masked(pixels, seed=0):
    task = make_task("reconstruction", {"patch": 8, "pixels": pixels})
    given = task.add_randomness(batch(height=32, width=32), torch.Generator().manual_seed(seed))
    return task, given


def targets(given, pixels):
    """Return an autoencoder's targets, patch by patch."""
    image = given["image"]
    mean, deviation = torch.tensor([0.3464, 0.2280, 0.2228]), torch.tensor([0.2520, 0.2128, 0.2093])
    normal = (image - mean[:, None, None]) / deviation[:, None, None]
    if pixels == "patches":
        for b, y, x in product(range(2), range(0, 32, 8), range(0, 32, 8)):
            patch = normal[b, :, y : y + 8, x : x + 8]
            normal[b, :, y : y + 8, x : x + 8] = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
    return normal


@pytest.mark.parametrize("pixels", ["normalised", "patches"])
def test_an_autoencoder_is_given_the_mask_and_its_loss_is_that_of_mae(autoencoder, pixels):
    task, given = masked(pixels)
    with torch.no_grad():
        predicted = autoencoder(given["image"], given["hidden"])
        result = task.loss(task.predict(autoencoder, given), given)
    error = (predicted - targets(given, pixels)).square().mean(1)
    assert float(result) == pytest.approx(float(error[given["hidden"]].mean()), rel=1e-4)


def test_what_an_autoencoder_is_not_shown_does_not_change_its_prediction(autoencoder):
    task, given = masked("normalised")
    other = torch.where(given["hidden"][:, None], torch.rand_like(given["image"]), given["image"])
    with torch.no_grad():
        torch.testing.assert_close(*(task.predict(autoencoder, {**given, "image": x}) for x in (given["image"], other)))
        losses = [float(task.loss(task.predict(autoencoder, given), given)) for _ in range(2)]
    assert losses[0] == losses[1]  # the mask is the same in the second pass of a step


def test_the_trivial_row_paints_the_mean_colour_of_the_frame():
    task, given = masked("patches")
    painted = task.predict(MeanColour(), given)
    assert torch.equal(painted, given["image"].mean((2, 3), keepdim=True).expand_as(painted))


def test_wrong_sizes_and_unknown_pixels_are_refused_and_no_targets_are_needed():
    assert TASK.spec.targets == () and TASK.channels == 3 and TASK.card.outputs == ()
    with pytest.raises(ValueError, match="patch 4 does not divide the frame size 10x16"):
        TASK.add_randomness(batch(height=10), torch.Generator())
    with pytest.raises(ValueError, match="pixels is 'raw'; use one of colours, normalised, patches"):
        make_task("reconstruction", {"pixels": "raw"})
