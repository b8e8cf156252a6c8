"""Every bundle's network gives each row of a batch the same output in any batch, so that several GPUs can share it."""

import pytest
import torch

from shared_components.networks.bundle_config import bundle_names
from tests.networks.test_sam2_video import FIRST, SECOND, clip, prompts, trained
from tests.networks.test_torchscript import FOLLOWS_BOXES, network_of


@pytest.mark.parametrize("bundle", [name for name in bundle_names() if name not in FOLLOWS_BOXES])
@torch.no_grad()
def test_a_bundles_network_computes_each_sample_by_itself_or_is_not_divided(bundle):
    network = network_of(bundle)
    frames = (getattr(network, "frames", 2),) if getattr(network, "takes_clips", False) else ()
    image = torch.rand(3, *frames, 3, 64, 64)
    whole, parts = network(image), [network(part) for part in image.split([2, 1])]
    if getattr(network, "stages_first", False):
        assert whole.shape[:2] == (2, 3)
        return
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_network_with_boxes_computes_each_clip_by_itself():
    network, clips = trained(), clip(2, clips=3)
    boxes = torch.cat([prompts(2, {0: FIRST}), prompts(2, {1: SECOND}), prompts(2, {})])
    parts = [network(clips[rows], boxes[rows]) for rows in (slice(2), slice(2, 3))]
    torch.testing.assert_close(torch.cat(parts), network(clips, boxes), rtol=1e-4, atol=1e-4)
