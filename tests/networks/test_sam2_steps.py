"""The decoder and box prompts equal `transformers`', whose forward needs removed heads; boxes that are refused."""

import pytest
import torch
from torch import Tensor
from transformers import Sam2VideoModel

from shared_components.networks import sam2_steps as steps
from shared_components.networks.sam2_architectures import ARCHITECTURES, configuration

SIDE, C, h = 64, 128, 4


@pytest.fixture(scope="module")
def model(toy) -> Sam2VideoModel:
    torch.manual_seed(0)
    made = Sam2VideoModel(configuration(ARCHITECTURES["toy"], side=SIDE, dropout=0.1)).eval()
    made.load_state_dict({name: torch.randn_like(value) * 0.1 for name, value in made.state_dict().items()})
    made.shared_image_embedding = made.prompt_encoder.shared_embedding
    return made


@pytest.fixture
def maps() -> Tensor:
    return torch.rand(2, C, h, h, generator=torch.Generator().manual_seed(1))


def test_box_tokens_are_those_of_its_corners_at_any_side(model):
    boxes = torch.tensor([[4.0, 6.0, 40.0, 33.0], [0.0, 0.0, 63.0, 63.0]])
    expected = model.prompt_encoder(None, None, boxes[:, None], None)[0]
    torch.testing.assert_close(steps.box_tokens(model.prompt_encoder, boxes, SIDE), expected)
    twice = (boxes + 0.5) * 2 - 0.5  # half a pixel is the middle of the first
    torch.testing.assert_close(steps.box_tokens(model.prompt_encoder, twice, 2 * SIDE), expected)


@pytest.mark.parametrize("filled_boxes", [False, True])
def test_the_decoder_gives_the_librarys_single_mask(model, maps, filled_boxes):
    finer = torch.rand(2, C // 8, 4 * h, 4 * h), torch.rand(2, C // 4, 2 * h, 2 * h)
    encoder, grid = model.prompt_encoder, steps.grid_of(model, maps)
    prompt = steps.filled(torch.tensor([[3.0, 8, 40, 60], [0, 0, 30, 9]]), SIDE) if filled_boxes else None
    mask = encoder.no_mask_embed.weight[:, :, None, None] if prompt is None else encoder.mask_embed(prompt)
    result = steps.decode(model.mask_decoder, maps, finer, steps.no_tokens(encoder, 2), mask, grid)
    points, labels = torch.zeros(2, 1, 1, 2), -torch.ones(2, 1, 1, dtype=torch.int32)
    sparse, dense = encoder(points, labels, None, prompt)
    model.mask_decoder.dynamic_multimask_via_stability = False
    masks, _, tokens, _ = model.mask_decoder(
        maps, grid.decoder.expand(2, -1, -1, -1), sparse, dense, False, list(finer)
    )
    torch.testing.assert_close(result.masks, masks[:, 0])
    torch.testing.assert_close(result.token, tokens[:, 0, 0])
    assert result.coarse.shape == (2, C, h, h) and result.fine.shape == (2, C // 8, 4 * h, 4 * h)


def test_the_whole_first_frame_is_from_its_first_pixel_to_the_end_of_its_last():
    boxes = steps.whole_frame(1, 2, 2, 32)
    assert boxes[0, 0].tolist() == [[0, 0, 32, 32]] * 2 and boxes[0, 1].isnan().all()
    steps.check_boxes(boxes, 1, 2, 32)


def test_a_filled_box_counts_the_share_of_each_cell_that_it_covers():
    masks = steps.filled(torch.tensor([[4.0, 2.0, 10.0, 3.0], [-3.0, 0.0, 20.0, 16.0]]), 16)
    down, across = torch.tensor([0.25, 0, 0, 0]), torch.tensor([0, 1, 0.5, 0])  # of cells 0-4, 4-8, 8-12 and 12-16
    torch.testing.assert_close(masks[0, 0], 2 * down[:, None] * across - 1)
    assert masks.shape == (2, 1, 4, 4) and (masks[1] == 1).all()


def test_boxes_that_are_empty_outside_not_finite_of_another_shape_or_several_of_depth_are_refused():
    nan, infinity = float("nan"), float("inf")
    for box in [5, 5, 4, 9], [40, 0, 50, 9], [-9, 0, -2, 9], [nan, 0, 9, 9], [0, 0, infinity, 9]:
        with pytest.raises(ValueError, match="is invalid in a frame of 32x32"):
            steps.check_boxes(torch.tensor(box, dtype=torch.float32).reshape(1, 1, 1, 4), 1, 1, 32)
    with pytest.raises(ValueError, match=r"boxes \(1, 2, objects, 4\) for 1 clips of 2 frames, and got \[1, 3, 1, 4\]"):
        steps.check_boxes(steps.whole_frame(1, 3, 1, 32), 1, 2, 32)
    with pytest.raises(ValueError, match="depth from one box per frame, not 2"):
        steps.check_boxes(steps.whole_frame(1, 1, 2, 32), 1, 1, 32, depth=True)
