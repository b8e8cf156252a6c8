"""The vectors of Table 7 that know a site's number alone."""

import pytest
import torch

from shared_components.core.text.encode import encode
from shared_components.core.text.numbered import gaussian, one_hot, random


def test_one_hot_is_one_at_the_sites_place():
    assert one_hot("any", site=2, sites=3, width=5).values.tolist() == [0, 0, 1, 0, 0]
    rows = torch.stack([one_hot("", site=site, sites=4, width=4).values for site in range(4)])
    assert torch.equal(rows, torch.eye(4)) and rows.dtype == torch.float32


@pytest.mark.parametrize("kind", [random, gaussian, one_hot])
def test_every_vector_is_as_long_as_a_texts(kind):
    """The project's own texts have length 1, so that Table 7's rows differ in direction alone."""
    text = encode("precomputed", "This is the Local site model and the surgery type is prostatectomy").values
    vector = kind("", site=1, sites=4, width=len(text)).values
    assert float(vector.norm()) == pytest.approx(float(text.norm()), abs=1e-4) == pytest.approx(1, abs=1e-4)


def test_gaussian_points_where_one_hot_with_a_deviation_of_a_tenth_does():
    """Of 40 thousand draws mean and deviation are known to about 1 / 200 of themselves; five of these are never met."""
    width = 40_000
    vector = gaussian("", site=17, sites=20, width=width).values
    vector = 0.1 * vector / vector[20:].std()
    rest = vector - torch.eye(1, width)[0].roll(17)
    assert abs(rest.mean()) < 0.0025 and abs(rest[17]) < 0.5 < vector[17]


def test_random_numbers_are_normal_and_tell_nothing_of_the_site():
    width = 40_000
    vectors = [random("", site=site, sites=3, width=width).values for site in range(3)]
    for vector in vectors:
        assert abs(vector.mean()) * width**0.5 < 0.025 and abs(vector.std() * width**0.5 - 1) < 0.025
    assert all(abs(torch.cosine_similarity(vectors[0], other, dim=0)) < 0.025 for other in vectors[1:])


@pytest.mark.parametrize("kind", [random, gaussian])
def test_chance_follows_from_seed_and_site_alone(kind):
    def drawn(site, seed, sites=4):
        return kind("text", site=site, sites=sites, width=8, seed=seed).values

    first = drawn(1, 5)
    torch.manual_seed(99)
    assert torch.equal(drawn(1, 5), first) and torch.equal(drawn(1, 5, sites=6), first)
    assert not torch.equal(drawn(1, 6), first) and not torch.equal(drawn(2, 5), first)


def test_random_and_gaussian_share_no_numbers():
    noise, other = (kind("", site=0, sites=1, width=64).values[1:] for kind in (gaussian, random))
    assert abs(torch.cosine_similarity(noise, other, dim=0)) < 0.5


def test_a_vector_says_what_it_is():
    for kind in (random, gaussian, one_hot):
        vector = kind("nephrectomy", site=0, sites=2, width=3)
        told = (vector.kind, vector.model, vector.sha256, vector.text)
        assert told == (kind.__name__, "", "", "nephrectomy")


@pytest.mark.parametrize("kind", [random, gaussian, one_hot])
@pytest.mark.parametrize(
    "change, words",
    [
        ({"site": 3}, "site is 3; it is a whole number, at least 0 and at most 2"),
        ({"site": -1}, "site is -1"),
        ({"site": 1.0}, "site is 1.0"),
        ({"site": True}, "site is True"),
        ({"sites": 0}, "sites is 0"),
        ({"width": 0}, "width is 0"),
        ({"width": None}, "width is None"),
    ],
)
def test_numbers_out_of_range_are_refused(kind, change, words):
    with pytest.raises(ValueError, match=f"^{kind.__name__}: {words}"):
        kind("", **{"site": 0, "sites": 3, "width": 4, **change})


def test_fewer_numbers_than_sites_are_refused_where_each_site_has_its_own():
    for kind in (gaussian, one_hot):
        with pytest.raises(ValueError, match="width is 2; it is a whole number, at least 3"):
            kind("", site=0, sites=3, width=2)
    assert len(random("", site=0, sites=3, width=2).values) == 2


def test_a_seed_below_zero_is_refused():
    with pytest.raises(ValueError, match="random: seed is -1"):
        random("", site=0, sites=1, width=2, seed=-1)
