"""Channel selection: equations written out, and the released forms."""

import math

import pytest
import torch

from shared_components.networks.channel_selection import ChannelSelection, ReleasedSelection


def test_channel_selection_equals_its_equations_written_out():
    torch.manual_seed(0)
    selection = ChannelSelection(3, 2)
    torch.nn.init.normal_(selection.gate.weight)
    torch.nn.init.normal_(selection.gate.bias)
    features, indicator = torch.rand(2, 3, 4, 5), torch.tensor([0.5, -2.0])
    result = selection(features, indicator)
    for sample in range(2):
        means = [sum(features[sample, c].flatten().tolist()) / 20 for c in range(3)]
        for c in range(3):
            row = zip(selection.gate.weight[c].tolist(), means + indicator.tolist(), strict=True)
            gate = 1 / (1 + math.exp(-sum(w * x for w, x in row) - selection.gate.bias[c].item()))
            torch.testing.assert_close(result[sample, c], features[sample, c] * (1 + gate))


def test_the_papers_megabytes_fit_a_text_of_256_and_not_clips_512():
    """SAM2 has 256 channels; in float16. Fang et al., Section IV-C: 22.35 MB with LCS, 22.10 MB without."""
    of_clip, reduced = (sum(p.numel() for p in ChannelSelection(256, text).parameters()) for text in (512, 256))
    assert (of_clip, reduced) == (196_864, 131_328)
    assert round(2 * of_clip / 1e6, 2) == 0.39 and round(2 * reduced / 2**20, 2) == round(22.35 - 22.10, 2) == 0.25


@pytest.mark.parametrize("adds_text", [True, False])
def test_the_released_forms_add_the_gated_text_or_the_gated_map(adds_text):
    torch.manual_seed(0)
    selection = ReleasedSelection(3, 2, adds_text=adds_text)
    features, indicator = torch.rand(2, 3, 4, 5), torch.tensor([0.5, -2.0])
    result = selection(features, indicator)
    first, _, second = selection.embedding
    text = second.weight @ (first.weight @ indicator + first.bias).clamp(min=0) + second.bias
    for sample in range(2):
        means = features[sample].mean((1, 2))
        gate = 1 / (1 + (-(selection.gate.weight @ torch.cat([means, text]) + selection.gate.bias)).exp())
        for c in range(3):
            gated = gate[c] * (text[c] if adds_text else features[sample, c])
            torch.testing.assert_close(result[sample, c], features[sample, c] + gated)
