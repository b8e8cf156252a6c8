"""Each step equals the library's module, whose own forward is for one object and reads heads that are off here."""

import pytest
import torch
from torch import Tensor
from transformers import Sam2VideoModel

from shared_components.networks.sam2_architectures import ARCHITECTURES, configuration
from shared_components.networks.sam2_steps import attend, box_tokens, decode, filled, grid_of, no_tokens, written

SIDE, C, h = 64, 128, 4


@pytest.fixture(scope="module")
def model(toy) -> Sam2VideoModel:
    torch.manual_seed(0)
    config = configuration(ARCHITECTURES["toy"], side=SIDE, dropout=0.1)
    made = Sam2VideoModel(config).eval()
    made.load_state_dict({name: torch.randn_like(value) * 0.1 for name, value in made.state_dict().items()})
    made.shared_image_embedding = made.prompt_encoder.shared_embedding
    return made


@pytest.fixture
def maps() -> Tensor:
    return torch.rand(2, C, h, h, generator=torch.Generator().manual_seed(1))


def test_positions_equal_the_librarys(model, maps):
    grid = grid_of(model, maps)
    torch.testing.assert_close(grid.decoder, model.get_image_wide_positional_embeddings())
    for found, expected in zip(
        grid.rope, model.memory_attention.rotary_emb(maps, model.memory_attention.position_ids), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_box_tokens_are_those_of_its_corners_at_any_side(model):
    boxes = torch.tensor([[4.0, 6.0, 40.0, 33.0], [0.0, 0.0, 63.0, 63.0]])
    expected = model.prompt_encoder(None, None, boxes[:, None], None)[0]
    torch.testing.assert_close(box_tokens(model.prompt_encoder, boxes, SIDE), expected)
    twice = (boxes + 0.5) * 2 - 0.5  # half a pixel is the middle of the first
    torch.testing.assert_close(box_tokens(model.prompt_encoder, twice, 2 * SIDE), expected)


def test_attention_equals_the_librarys_of_one_object_after_another(model, maps):
    memory, places, grid = torch.rand(2, 2 * h * h + 4, 64), torch.rand(2 * h * h + 4, 64), grid_of(model, maps)
    found = attend(model.memory_attention, maps, memory, places, 4, grid)
    for n in range(2):
        expected = model.memory_attention(
            maps[n].flatten(1).T[:, None],
            memory[n][:, None],
            grid.image[0].flatten(1).T[:, None],
            places[:, None],
            num_object_pointer_tokens=4,
        )
        torch.testing.assert_close(found[n].flatten(1).T, expected.reshape(h * h, C))


@pytest.mark.parametrize("filled_boxes", [False, True])
def test_the_decoder_gives_the_librarys_single_mask(model, maps, filled_boxes):
    finer = torch.rand(2, C // 8, 4 * h, 4 * h), torch.rand(2, C // 4, 2 * h, 2 * h)
    encoder, grid = model.prompt_encoder, grid_of(model, maps)
    prompt = filled(torch.tensor([[3.0, 8, 40, 60], [0, 0, 30, 9]]), SIDE) if filled_boxes else None
    mask = encoder.no_mask_embed.weight[:, :, None, None] if prompt is None else encoder.mask_embed(prompt)
    found = decode(model.mask_decoder, maps, finer, no_tokens(encoder, 2), mask, grid)
    points, labels = torch.zeros(2, 1, 1, 2), -torch.ones(2, 1, 1, dtype=torch.int32)
    sparse, dense = encoder(points, labels, None, prompt)
    model.mask_decoder.dynamic_multimask_via_stability = False
    masks, _, tokens, _ = model.mask_decoder(
        maps, grid.decoder.expand(2, -1, -1, -1), sparse, dense, False, list(finer)
    )
    torch.testing.assert_close(found.masks, masks[:, 0])
    torch.testing.assert_close(found.token, tokens[:, 0, 0])
    assert found.coarse.shape == (2, C, h, h) and found.fine.shape == (2, C // 8, 4 * h, 4 * h)


def test_a_memory_equals_the_librarys(model, maps):
    masks, encoder = torch.rand(2, 1, SIDE, SIDE), model.memory_encoder
    expected, _ = encoder(maps, masks * 20 - 10)
    torch.testing.assert_close(written(encoder, encoder.feature_projection(maps), masks), expected)
