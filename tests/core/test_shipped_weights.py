"""A bundle's weights are those of its card, or they are not used."""

import json

import pytest
import torch

from shared_components.core.shipped_weights import FACTS, MODEL, sha256_of, shipped_facts, shipped_weights
from shared_components.networks.bundle_config import bundle_names
from shared_components.networks.checkpoints import CheckpointError, save_weights


@pytest.fixture
def folder(tmp_path):
    """Return a folder of bundles of which `toy` ships weights."""
    save_weights(tmp_path / "toy" / MODEL, {"a": torch.ones(2, dtype=torch.float16)})
    (tmp_path / "toy" / FACTS).write_text(json.dumps({"sha256": sha256_of(tmp_path / "toy" / MODEL)}))
    return tmp_path


def test_weights_and_card_belong_together(folder):
    assert shipped_weights("toy", folder) == folder / "toy" / MODEL
    assert shipped_facts("toy", folder) == {"sha256": sha256_of(folder / "toy" / MODEL)}


def test_weights_of_another_card_are_refused_by_both_hashes(folder):
    card = shipped_facts("toy", folder)["sha256"]
    save_weights(folder / "toy" / MODEL, {"a": torch.zeros(2)})
    with pytest.raises(CheckpointError, match="weights whose hash is not the card's") as error:
        shipped_weights("toy", folder)
    assert card[:8] in str(error.value) and sha256_of(folder / "toy" / MODEL)[:8] in str(error.value)


@pytest.mark.parametrize("gone", [MODEL, FACTS])
def test_a_bundle_without_weights_says_what_to_do(folder, gone):
    (folder / "toy" / gone).unlink()
    with pytest.raises(CheckpointError, match="bundle 'toy' ships no weights") as error:
        shipped_weights("toy", folder)
    assert "use start: random, or make some with `surgfl pretrain`" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"sha256": 3}'])
def test_a_damaged_card_is_named(folder, text):
    (folder / "toy" / FACTS).write_text(text)
    with pytest.raises(CheckpointError, match=r"toy/models/model\.json: .*run `surgfl ship` again"):
        shipped_weights("toy", folder)


@pytest.mark.parametrize("bundle", bundle_names())
def test_what_the_bundles_here_ship_is_what_their_cards_say(bundle):
    if shipped_facts(bundle) is not None:
        assert shipped_weights(bundle).stat().st_size < 14e6
