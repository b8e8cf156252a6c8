"""The control of FedSurg's card: a logistic regression on histograms of colour."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from evidence import colours
from shared_components.core.task import make_task
from shared_components.data.samples import Item

TASK = make_task("classification", {"target": "grade", "ordered": True}, classes=("none", "mild", "severe"))


def item(colour, grade):
    image = np.full((2, 4, 5, 3), colour, np.uint8)
    return Item(image, {"grade": np.array([grade])}, "a", f"video{grade}{colour[0]}", 0)


ITEMS = [item((20 + 100 * grade + n, 60, 30 + n), grade) for grade in range(3) for n in range(4)]


def test_a_histogram_has_the_share_of_pixels_in_each_bin_of_each_colour():
    image = np.zeros((1, 1, 4, 3), np.uint8)
    image[0, 0, :, 0] = 0, 15, 16, 255
    (row,) = colours.histograms([Item(image, {}, "a")])
    red, green = row[: colours.BINS], row[colours.BINS : 2 * colours.BINS]
    assert (red[0], red[1], red[-1], green[0], row.sum()) == (0.5, 0.25, 0.25, 1, 3)


def test_the_regression_is_at_the_minimum_of_its_penalised_loss():
    torch.manual_seed(0)
    features, grade = torch.rand(30, 4, dtype=torch.float64) * 7 + 3, torch.randint(0, 3, (30,))
    model = colours.regression(features, grade, 3)
    standard = (features - features.mean(0)) / features.std(0)
    weight = (model.weight * features.std(0)).detach().requires_grad_()
    bias = (model.bias + model.weight @ features.mean(0)).detach().requires_grad_()
    loss = colours.STRENGTH * F.cross_entropy(standard @ weight.T + bias, grade, reduction="sum")
    (loss + weight.square().sum() / 2).backward()
    assert max(weight.grad.abs().max(), bias.grad.abs().max()) < 1e-4


def test_grades_that_colours_tell_apart_are_found_and_scored():
    features, grade = colours.histograms(ITEMS), colours.grades(ITEMS, TASK)
    assert grade.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    model = colours.regression(features, grade, 3)
    assert colours.scores(model, ITEMS, TASK) == (1, 1, 0)
    wrong = [item((20, 60, 30), 2)]
    assert colours.scores(model, wrong, TASK) == pytest.approx((0, 0, 1))
