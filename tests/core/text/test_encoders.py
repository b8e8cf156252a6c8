"""One entry for all kinds, which says what a kind takes and needs; and the kinds that know a site's number alone."""

import pytest
import torch

from shared_components.core.text.site_text import DEFAULT, KINDS, Numbered, encode
from tests.core.text.conftest import PROJECTED, WIDTH

PLACE = {"site": 1, "sites": 3, "seed": 4}
NUMBERED = ["random", "gaussian", "one_hot"]


def refused(words, kind, text="nephrectomy", **settings):
    with pytest.raises(ValueError, match=words) as error:
        encode(kind, text, **settings)
    assert "\n" not in str(error.value)


def test_every_kind_makes_a_vector_from_the_same_call(clip_folder, sentence_folder):
    """A federation's facts are given to all, a folder to those that read one."""
    folders = {"clip": (clip_folder, PROJECTED), "sentence": (sentence_folder, WIDTH), "precomputed": (None, 384)}
    for kind in KINDS:
        folder, width = folders.get(kind, (None, 5))
        text = "site a" if folder else "nephrectomy"
        vector = encode(kind, text, folder=folder, width=width, **PLACE)
        assert vector.values.shape == (width,) and vector.text == text
        assert vector.kind == ("sentence" if kind == DEFAULT else kind)
    assert encode("one_hot", "", width=3, **PLACE).values.tolist() == [0, 1, 0]


def test_kinds_are_listed_and_settings_of_other_kinds_or_widths_are_refused(tmp_path, clip_folder):
    refused("encoder 'bert' is unknown; use one of precomputed, clip, sentence, random, gaussian, one_hot", "bert")
    refused("encoder 'precomputed' does not use folder .*; leave it out", "precomputed", folder=tmp_path)
    refused("encoder 'clip' does not use file", "clip", file=tmp_path, folder=tmp_path)
    refused("encoder 'one_hot' does not use file", "one_hot", file=tmp_path, width=3, **PLACE)
    refused("encoder 'clip' needs folder", "clip")
    refused("encoder 'random' needs sites and width", "random", site=0)
    refused("by all-MiniLM-L6-v2 has 384 numbers, but 512 are needed", "precomputed", width=512)
    refused("by tiny-clip has 6 numbers, but 7 are needed", "clip", "site a", folder=clip_folder, width=7)


@pytest.mark.parametrize("kind", ["precomputed", "clip", "sentence"])
@pytest.mark.parametrize("text", ["", "\n ", None, 7])
def test_an_empty_text_is_refused_before_anything_is_read(kind, text, tmp_path):
    settings = {} if kind == "precomputed" else {"folder": tmp_path / "nowhere"}
    refused("the site's text is .*; describe the site", kind, text, **settings)


def values_of(kind, **numbers):
    return Numbered(kind, **numbers).encode("any").values


def test_one_hot_is_one_at_the_sites_place_and_needs_a_number_per_site():
    assert values_of("one_hot", site=2, sites=3, width=5).tolist() == [0, 0, 1, 0, 0]
    rows = torch.stack([values_of("one_hot", site=site, sites=4, width=4) for site in range(4)])
    assert torch.equal(rows, torch.eye(4)) and rows.dtype == torch.float32
    for kind in ("gaussian", "one_hot"):
        with pytest.raises(ValueError, match="width is 2; it is a whole number, at least 3"):
            Numbered(kind, site=0, sites=3, width=2)
    assert len(values_of("random", site=0, sites=3, width=2)) == 2


@pytest.mark.parametrize("kind", NUMBERED)
def test_every_vector_has_length_one_its_kind_and_no_model(kind):
    text = encode("precomputed", "This is the Local site model and the surgery type is prostatectomy").values
    vector = values_of(kind, site=1, sites=4, width=len(text))
    assert float(vector.norm()) == pytest.approx(float(text.norm()), abs=1e-4) == pytest.approx(1, abs=1e-4)
    vector = Numbered(kind, site=0, sites=2, width=3).encode("nephrectomy")
    assert (vector.kind, vector.model, vector.sha256, vector.text) == (kind, "", "", "nephrectomy")


def test_gaussian_and_random_numbers_have_their_deviations_and_are_independent():
    width = 40_000
    vector = values_of("gaussian", site=17, sites=20, width=width)
    vector = 0.1 * vector / vector[20:].std()
    rest = vector - torch.eye(1, width)[0].roll(17)
    assert abs(rest.mean()) < 0.0025 and abs(rest[17]) < 0.5 < vector[17]
    vectors = [values_of("random", site=site, sites=3, width=width) for site in range(3)]
    for vector in vectors:
        assert abs(vector.mean()) * width**0.5 < 0.025 and abs(vector.std() * width**0.5 - 1) < 0.025
    assert all(abs(torch.cosine_similarity(vectors[0], other, dim=0)) < 0.025 for other in vectors[1:])
    noise, other = (values_of(kind, site=0, sites=1, width=64)[1:] for kind in ("gaussian", "random"))
    assert abs(torch.cosine_similarity(noise, other, dim=0)) < 0.5


@pytest.mark.parametrize("kind", ["random", "gaussian"])
def test_random_numbers_follow_from_seed_and_site_alone(kind):
    def drawn(site, seed, sites=4):
        return values_of(kind, site=site, sites=sites, width=8, seed=seed)

    first = drawn(1, 5)
    torch.manual_seed(99)
    assert torch.equal(drawn(1, 5), first) and torch.equal(drawn(1, 5, sites=6), first)
    assert not torch.equal(drawn(1, 6), first) and not torch.equal(drawn(2, 5), first)


@pytest.mark.parametrize("kind", NUMBERED)
@pytest.mark.parametrize("change, words", [
    ({"site": 3}, "site is 3; it is a whole number, at least 0 and at most 2"), ({"site": -1}, "site is -1"),
    ({"site": 1.0}, "site is 1.0"), ({"site": True}, "site is True"), ({"sites": 0}, "sites is 0"),
    ({"width": 0}, "width is 0"), ({"width": None}, "width is None"), ({"seed": -1}, "seed is -1"),
])  # fmt: skip
def test_numbers_out_of_range_are_refused(kind, change, words):
    with pytest.raises(ValueError, match=f"^{kind}: {words}"):
        Numbered(kind, **{"site": 0, "sites": 3, "width": 4, **change})
