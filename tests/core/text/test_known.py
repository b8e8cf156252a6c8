"""What the project ships: every text that it says it ships, of one encoder, in files that an installation has."""

import configparser
import fnmatch
from itertools import combinations
from pathlib import Path

import pytest
import torch

from shared_components.core.text import sentence
from shared_components.core.text.known import SURGERIES, known_texts, site_text
from shared_components.core.text.vectors_file import SHIPPED, precomputed, read_vectors
from shared_components.data.site_file import load_site
from shared_components.data.synthetic.looks import LOOKS
from shared_components.data.synthetic.site import write_site

ROOT = Path(__file__).resolve().parents[3]


def likeness(first, second):
    return float(torch.cosine_similarity(precomputed(first).values, precomputed(second).values, dim=0))


def test_the_papers_sentence():
    sentence = "This is the Local site A model and the surgery type is nephrectomy"  # section 3.2.2
    assert site_text("nephrectomy", "A") == sentence
    assert site_text("nephrectomy") == sentence.replace("site A", "site")


def test_the_file_holds_the_known_texts_and_no_other():
    """If this fails, remove the shipped vectors, and `surgfl text-vectors --known --file` them again."""
    assert read_vectors().texts == known_texts()


def test_the_file_is_of_the_encoder_that_can_be_installed():
    vectors = read_vectors()
    assert (vectors.kind, vectors.model, vectors.sha256) == ("sentence", sentence.MODEL, sentence.SHA256)
    assert vectors.values.shape == (len(known_texts()), 384) and vectors.values.dtype == torch.float32
    torch.testing.assert_close(vectors.values.norm(dim=1), torch.ones(len(known_texts())))


@pytest.mark.parametrize("look", ["violet", "random-12"])
def test_what_rendered_sites_say_has_a_vector(look, tmp_path):
    videos = {"train": 1}
    write_site(tmp_path / "a", look=look, seed=1, videos=videos, frames_per_video=1, height=64, width=64)
    text = load_site(tmp_path / "a").text
    assert precomputed(text).text == text and precomputed(site_text(text)).values.shape == (384,)


def test_vectors_tell_texts_apart_and_know_which_are_near():
    """The two nephrectomies and the two prostatectomies are nearest; surgeries are far from looks."""
    pairs = {pair: likeness(*pair) for pair in combinations(SURGERIES, 2)}
    first, second, third, *_ = sorted(pairs, key=pairs.__getitem__, reverse=True)
    assert {first, second} == {SURGERIES[0:2], SURGERIES[2:4]} and pairs[third] < 0.5 < pairs[second] < 0.8
    looks = [text for text in known_texts() if text.startswith("synthetic: ")]
    assert len(looks) == len(LOOKS) + 1
    assert max(likeness(surgery, look) for surgery in SURGERIES for look in looks) < 0.35


def test_the_file_is_small_and_installed_with_the_package():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    patterns = [item.strip() for item in setup["options.package_data"]["*"].split(",")]
    assert any(fnmatch.fnmatch(SHIPPED.name, pattern) for pattern in patterns)
    assert (SHIPPED.parent / "__init__.py").is_file() and SHIPPED.stat().st_size < 200_000
    assert f"!/{SHIPPED.relative_to(ROOT)}" in (ROOT / ".gitignore").read_text().splitlines()
