"""CLIP's text tower from a folder: the right numbers, or one sentence."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from shared_components.core.shipped_weights import sha256_of
from shared_components.core.text.clip import open_clip
from tests.core.text.by_hand import clip_vector
from tests.core.text.conftest import END, HEADS, POSITIONS, PROJECTED, changed, clip_state, clip_words

IDS = [515, 514, 320, 516]  # start, "site" of three merges, "a" (its place among the letters, 64, and 256), end


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_text_is_cut_as_worked_by_hand(clip_folder):
    encoder = open_clip(clip_folder)
    assert encoder.tokens("site a") == encoder.tokens("Site  A") == IDS
    assert encoder.tokens("sit") == [515, 512, clip_words().index("t</w>"), 516]  # the last letter ends the word


def test_a_vector_is_what_loops_compute(clip_folder):
    vector = open_clip(clip_folder).encode("site a")
    assert vector.values.shape == (PROJECTED,) and vector.values.dtype == torch.float32
    expected = clip_vector(clip_state(), IDS, heads=HEADS, end=IDS[-1])
    np.testing.assert_allclose(vector.values, expected, rtol=1e-4, atol=1e-5)
    told = (vector.kind, vector.model, vector.sha256, vector.text)
    assert told == ("clip", "tiny-clip", sha256_of(clip_folder / "model.safetensors"), "site a")


def test_a_vector_is_what_the_library_makes_of_the_folder(clip_folder):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.CLIPTextModelWithProjection.from_pretrained(clip_folder, local_files_only=True).eval()
    encoder = open_clip(clip_folder)
    for text in ("site a", "b: si site"):
        with torch.no_grad():
            expected = theirs(input_ids=torch.tensor([encoder.tokens(text)])).text_embeds[0]
        torch.testing.assert_close(encoder.encode(text).values, expected)


def test_all_layouts_give_the_same_vector(clip_folder):
    """Weights as .bin, a tokenizer in one file, half precision, a whole CLIP, and the first release's end token."""
    transformers = pytest.importorskip("transformers")
    first = open_clip(clip_folder).encode("site a").values
    state = weights(clip_folder)
    whole = {**state, "vision_model.any": torch.ones(2), "logit_scale": torch.ones(())}
    torch.save({**whole, "text_model.embeddings.position_ids": torch.arange(POSITIONS)[None]},
               clip_folder / "pytorch_model.bin")  # fmt: skip
    (clip_folder / "model.safetensors").unlink()
    tokenizer = transformers.CLIPTokenizer.from_pretrained(clip_folder, local_files_only=True)
    tokenizer.backend_tokenizer.save(str(clip_folder / "tokenizer.json"))
    (clip_folder / "vocab.json").unlink()
    (clip_folder / "merges.txt").unlink()
    text_config = json.loads((clip_folder / "config.json").read_text()) | {"eos_token_id": 2, "projection_dim": 999}
    (clip_folder / "config.json").write_text(
        json.dumps({"model_type": "clip", "projection_dim": PROJECTED, "text_config": text_config})
    )
    assert torch.equal(open_clip(clip_folder).encode("site a").values, first)

    changed(clip_folder / "config.json", dtype="float16", text_config={**text_config, "dtype": "float16"})
    torch.save({name: value.half() for name, value in state.items()}, clip_folder / "pytorch_model.bin")
    half = open_clip(clip_folder).encode("site a").values
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, first, rtol=1e-2, atol=1e-2)


def test_chance_elsewhere_is_left_as_it_was(clip_folder):
    torch.manual_seed(7)
    open_clip(clip_folder).encode("site a")
    after = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), after)


# ---- what is refused


def refused(folder, words, text="site a"):
    with pytest.raises(ValueError, match=words) as error:
        open_clip(folder).encode(text)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_text_that_is_too_long_is_refused_by_its_tokens(clip_folder):
    fits = " ".join("a" * (POSITIONS - 2))
    assert open_clip(clip_folder).encode(fits).values.shape == (PROJECTED,)
    assert "tiny-clip" in refused(clip_folder, "has 13 tokens, and tiny-clip takes at most 12", f"{fits} a")


@pytest.mark.parametrize("text", ["", " \n", None, 3])
def test_an_empty_text_is_refused(clip_folder, text):
    refused(clip_folder, "the site's text is .*; describe the site", text)


def test_a_folder_that_is_none_is_refused(tmp_path):
    refused(tmp_path / "nowhere", "nowhere is no folder; give one with config.json, model.safetensors or")
    refused(tmp_path, r"config\.json does not exist; give the whole folder")


def test_a_folder_without_weights_is_refused(clip_folder):
    (clip_folder / "model.safetensors").unlink()
    refused(clip_folder, r"tiny-clip: holds no weights; put model\.safetensors or pytorch_model\.bin there")


def test_a_folder_of_another_model_is_refused(clip_folder):
    changed(clip_folder / "config.json", model_type="bert")
    refused(clip_folder, "is of model type 'bert' by its config.json; give a folder of clip or clip_text_model")


@pytest.mark.parametrize("text", ["{", "[]", "\0"])
def test_a_damaged_config_is_named(clip_folder, text):
    (clip_folder / "config.json").write_text(text)
    refused(clip_folder, r"config\.json: (cannot be read|holds no JSON object)")


def test_a_tower_without_its_projection_is_refused(clip_folder):
    """The library would draw one at random, and warn."""
    state = weights(clip_folder)
    del state["text_projection.weight"]
    save_file(state, clip_folder / "model.safetensors")
    refused(clip_folder, r"another network than CLIP's text tower: it lacks text_projection\.weight")


@pytest.mark.parametrize("keep", [0, 100, -4])
def test_weights_that_are_cut_short_are_named(clip_folder, keep):
    path = clip_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(clip_folder, r"model\.safetensors is damaged")


def test_a_file_of_weights_that_would_run_code_is_refused(clip_folder):
    class Trap:
        def __reduce__(self):
            return (print, ("run",))

    (clip_folder / "model.safetensors").unlink()
    torch.save({"state_dict": Trap()}, clip_folder / "pytorch_model.bin")
    refused(clip_folder, r"pytorch_model\.bin is damaged or holds more than tensors")


def test_weights_that_are_nan_are_refused(clip_folder):
    state = weights(clip_folder)
    state["text_projection.weight"][2, 3] = float("nan")
    save_file(state, clip_folder / "model.safetensors")
    refused(clip_folder, "tiny-clip: the vector of 'site a' has numbers that are NaN or infinite")


@pytest.mark.parametrize("file", ["vocab.json", "merges.txt"])
def test_a_missing_vocabulary_is_refused(clip_folder, file):
    """The library would go on with a vocabulary of two tokens."""
    (clip_folder / file).unlink()
    refused(clip_folder, r"holds no vocabulary; put tokenizer\.json, or vocab\.json and merges\.txt there")


def test_a_vocabulary_of_two_tokens_is_refused(clip_folder):
    """What the library makes of no vocabulary at all, saved as if it were one."""
    (clip_folder / "vocab.json").write_text(json.dumps({"<|startoftext|>": 0, END: 1}))
    (clip_folder / "merges.txt").write_text("#version: 0.2\n")
    refused(clip_folder, "its vocabulary has 2 tokens, and the encoder 517; the files are cut short")


def test_a_vocabulary_that_is_cut_short_is_refused(clip_folder):
    path = clip_folder / "vocab.json"
    path.write_text(path.read_text()[:-20])
    refused(clip_folder, "tiny-clip: its vocabulary cannot be read")


def test_merges_that_are_cut_short_are_refused(clip_folder):
    """The library would spell the words that they make."""
    (clip_folder / "merges.txt").write_text("#version: 0.2\ns i\n")
    refused(clip_folder, "2 tokens of its vocabulary, such as 'sit', are made by no merge")


def test_another_end_than_the_vocabularys_is_refused(clip_folder):
    """The library would look for it in vain, and give every text the vector of its start."""
    changed(clip_folder / "config.json", eos_token_id=7)
    refused(clip_folder, r"texts end with token 516 by its vocabulary and 7 by its config\.json")


def test_without_the_library_one_sentence_says_what_to_install(clip_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(clip_folder, r"need the package transformers, .* pip install 'transformers>=5', or use precomputed")


def test_an_old_library_is_refused(clip_folder, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(transformers, "__version__", "4.57.1")
    refused(clip_folder, r"transformers 4\.57\.1 is too old")


def test_a_folder_can_be_moved(clip_folder, tmp_path):
    first = open_clip(clip_folder).encode("site a")
    moved = open_clip(shutil.move(clip_folder, tmp_path / "elsewhere")).encode("site a")
    assert torch.equal(moved.values, first.values) and moved.sha256 == first.sha256
