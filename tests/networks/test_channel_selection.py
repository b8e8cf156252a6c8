"""Channel selection against Eqs. (7) and (8) in loops over channels, and the prompt."""

import math

import torch

from shared_components.networks.channel_selection import ChannelSelection, Prompt


def test_channel_selection_equals_its_equations_written_out():
    torch.manual_seed(0)
    selection = ChannelSelection(3, 2)
    torch.nn.init.normal_(selection.gate.weight)
    torch.nn.init.normal_(selection.gate.bias)
    features, indicator = torch.rand(2, 3, 4, 5), torch.tensor([0.5, -2.0])
    found = selection(features, indicator)
    for sample in range(2):
        means = [sum(features[sample, c].flatten().tolist()) / 20 for c in range(3)]
        for c in range(3):
            row = zip(selection.gate.weight[c].tolist(), means + indicator.tolist(), strict=True)
            gate = 1 / (1 + math.exp(-sum(w * x for w, x in row) - selection.gate.bias[c].item()))
            torch.testing.assert_close(found[sample, c], features[sample, c] * (1 + gate))


def test_a_prompt_adds_the_embedded_text_to_every_pixel():
    prompt = Prompt(3, 2)
    features, indicator = torch.rand(2, 3, 4, 5), torch.tensor([0.5, -2.0])
    assert torch.equal(prompt(features, indicator), features)  # zeros at first
    with torch.no_grad():
        prompt.embedding.weight.copy_(torch.tensor([[2.0, 0], [0, 1], [2, 1]]))
    added = torch.tensor([1.0, -2.0, -1.0]).reshape(3, 1, 1)
    torch.testing.assert_close(prompt(features, indicator), features + added)
    assert torch.equal(prompt(features, torch.zeros(2)), features)  # nothing was told


def test_the_numbers_of_parameters_are_one_linear_layer_each():
    def count(module):
        return sum(parameter.numel() for parameter in module.parameters())

    assert count(ChannelSelection(160, 384)) == (160 + 384) * 160 + 160 == 87_200
    assert count(Prompt(160, 384)) == 384 * 160 == 61_440
