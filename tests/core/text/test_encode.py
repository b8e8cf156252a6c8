"""One entry for all kinds, which says what a kind takes, and needs."""

import subprocess
import sys

import pytest
import torch

from shared_components.core.text.clip import open_clip
from shared_components.core.text.encode import DEFAULT, ENCODERS, KINDS, encode
from shared_components.core.text.sentence import open_sentence
from shared_components.core.text.vectors_file import add_vectors
from tests.core.text.conftest import PROJECTED, WIDTH

PLACE = {"site": 1, "sites": 3, "seed": 4}


def refused(words, kind, text="nephrectomy", **settings):
    with pytest.raises(ValueError, match=words) as error:
        encode(kind, text, **settings)
    assert "\n" not in str(error.value)


def test_every_kind_makes_a_vector_from_the_same_call(clip_folder, sentence_folder):
    """A federation's facts are given to all, a folder to those that read one."""
    folders = {"clip": (clip_folder, PROJECTED), "sentence": (sentence_folder, WIDTH), "precomputed": (None, 384)}
    text = "nephrectomy"
    for kind in KINDS:
        folder, width = folders.get(kind, (None, 5))
        text = "site a" if folder else "nephrectomy"
        vector = encode(kind, text, folder=folder, width=width, **PLACE)
        assert vector.values.shape == (width,) and vector.text == text
        assert vector.kind == ("sentence" if kind == DEFAULT else kind)
    assert encode("one_hot", "", width=3, **PLACE).values.tolist() == [0, 1, 0]


def test_kinds_are_those_of_what_they_name(clip_folder, sentence_folder):
    for kind, made in (("clip", open_clip(clip_folder)), ("sentence", open_sentence(sentence_folder))):
        found = encode(kind, "site a", folder=made.folder)
        assert torch.equal(found.values, made.encode("site a").values)
    assert set(ENCODERS) < set(KINDS) and DEFAULT in KINDS


def test_an_unknown_kind_lists_all():
    refused("encoder 'bert' is unknown; use one of precomputed, clip, sentence, random, gaussian, one_hot", "bert")


@pytest.mark.parametrize("kind", ["precomputed", "clip", "sentence"])
@pytest.mark.parametrize("text", ["", "\n "])
def test_an_empty_text_is_refused_before_anything_is_read(kind, text, tmp_path):
    settings = {} if kind == "precomputed" else {"folder": tmp_path / "nowhere"}
    refused("the site's text is", kind, text, **settings)


def test_a_setting_that_is_not_the_kinds_is_refused(tmp_path):
    refused("encoder 'precomputed' reads no folder, and .* is given; leave it out", "precomputed", folder=tmp_path)
    refused("encoder 'clip' reads no file", "clip", file=tmp_path, folder=tmp_path)
    refused("encoder 'one_hot' reads no file", "one_hot", file=tmp_path, width=3, **PLACE)


def test_a_setting_that_is_missing_is_named():
    refused("encoder 'clip' needs folder", "clip")
    refused("encoder 'random' needs sites and width", "random", site=0)


def test_another_width_than_asked_for_is_refused(clip_folder):
    refused("by all-MiniLM-L6-v2 has 384 numbers, and 512 are asked for", "precomputed", width=512)
    refused("by tiny-clip has 6 numbers, and 7 are asked for", "clip", "site a", folder=clip_folder, width=7)


def test_vectors_of_a_sites_own_clip_are_used_by_their_file(clip_folder, tmp_path):
    made = open_clip(clip_folder).encode("site a")
    add_vectors(tmp_path / "own.safetensors", [made])
    found = encode("precomputed", "site a", file=tmp_path / "own.safetensors", width=PROJECTED)
    assert torch.equal(found.values, made.values) and found.sha256 == made.sha256


def test_looking_a_vector_up_imports_no_library():
    code = (
        "import sys; from shared_components.core.text.encode import encode; encode('precomputed', 'nephrectomy'); "
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
