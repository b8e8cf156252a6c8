"""Keys: two sites find one secret, nobody else does, and odd keys are refused."""

import pytest

from shared_components.federation.secure_sums.keys import Keys, public_of, seal, unseal
from tests.federation.secure_sums.parties import make_keys, private_of


def test_public_keys_are_those_of_the_standard():
    """RFC 7748, 6.1: Bob's."""
    private = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert public_of(private).hex() == public


def test_two_sites_find_the_same_secret_and_purposes_differ():
    keys = make_keys(3)
    first = keys["site-1"].secret("site-2", b"mask")
    assert first == keys["site-2"].secret("site-1", b"mask")
    others = [keys["site-1"].secret("site-2", b"shares"), keys["site-1"].secret("site-3", b"mask")]
    assert first not in others and others[0] != others[1]


def test_keys_that_are_not_ones_own_are_twice_there_or_are_none_are_refused():
    public = {f"site-{n + 1}": public_of(private_of(n)) for n in range(3)}
    with pytest.raises(ValueError, match="a key for site-1 that is not its own"):
        Keys("site-1", private_of(1), public)
    with pytest.raises(ValueError, match="the same key for two sites"):
        Keys("site-1", private_of(0), public | {"site-3": public["site-2"]})
    with pytest.raises(ValueError, match="the key of site-2 is none"):
        Keys("site-1", private_of(0), public | {"site-2": bytes(32)}).secret("site-2", b"mask")


def test_sealed_content_is_read_with_its_key_and_about_its_matter_alone():
    key = b"k" * 32
    sealed = seal(key, b"share", b"round 1")
    assert unseal(key, sealed, b"round 1") == b"share" and b"share" not in sealed
    assert seal(key, b"share", b"round 1") != sealed
    for wrong in (
        (b"j" * 32, sealed, b"round 1"),
        (key, sealed, b"round 2"),
        (key, sealed[:-1], b"round 1"),
        (key, b"", b""),
    ):
        with pytest.raises(ValueError, match="changed on its way, or is of another round"):
            unseal(*wrong)
