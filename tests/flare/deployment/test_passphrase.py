"""Passphrases from word lists, keyboard rows, repetitions and names are refused, and unrelated words are accepted."""

import random
import string

import pytest

from shared_components.flare.deployment.passphrase import estimate_bits, passphrase_problem

NAMES = ("alpine-registry", "fl.example.org", "klinikum-nord", "lena.berg@example.org")


@pytest.mark.parametrize(
    "passphrase",
    [
        "aaaaaaaaaaaa", "aaaaaaaaaaab", "a" * 400, "abababababab", "abcabcabcabc", "aabbccddeeff", "äöäöäöäöäöäö",
        "123456789012", "987654321098", "112233445566", "acegikmoqsuw", "zyxwvutsrqpo", "abcdefghijklmnopqrstuvwxyz",
        "qwertyuiop[]", "poiuytrewqlk", "asdfghjkl;'a", "1qaz2wsx3edc", "!QAZ@WSX#EDC", "QwErTyUiOpAs",
        "password1234", "P@ssw0rd2026", "drowssapdrowssap", "iloveyou12345", "Summer2026!!", "letmeinletmein",
        "correcthorsebatterystaple", "hospital hospital hospital", "12.03.1980-12", "1980-03-12/1982",
        "surgflsurgfl", "SurgFL-NVFlare", "alpine-registry", "Klinikum-Nord-1", "alpineregistry!", "yrtsiger-enipla",
        "lena.berg2026",
    ],
)  # fmt: skip
def test_a_passphrase_that_is_easy_to_guess_is_refused(passphrase):
    assert passphrase_problem(passphrase, NAMES).startswith("is easy to guess (")


@pytest.mark.parametrize(
    "passphrase",
    [
        "a horse, a staple and a cell", "meine katze frisst gern fisch", "orbit velvet tundra piano", "x7Kp2mQw9zRt",
        "hrtzqnwplkxv", "žluťoučký kůň úpěl", "9hfT/qW2+sLx0PzR8uVbNnE1cKd4", "кот ест рыбу дома",
    ],
)  # fmt: skip
def test_unrelated_words_and_random_letters_are_accepted(passphrase):
    assert passphrase_problem(passphrase, NAMES) == ""


def test_a_short_passphrase_is_refused_and_names_count_only_in_their_own_federation():
    assert passphrase_problem("x7Kp2mQw9zR") == "has 11 letters; give at least 12"
    assert estimate_bits("alpine-registry") > 70 and passphrase_problem("alpine-registry") == ""


def test_random_letters_are_almost_never_mistaken_for_a_pattern():
    draw = random.Random(0)
    letters = string.ascii_letters + string.digits
    refused = [bool(passphrase_problem("".join(draw.choices(letters, k=16)), NAMES)) for _ in range(500)]
    assert sum(refused) == 0


def test_the_cheapest_spelling_determines_the_bits():
    assert estimate_bits("zk") == pytest.approx(2 * 4.7, abs=0.01)  # two of 26 letters
    assert estimate_bits("password") == 8.0  # a word
    assert estimate_bits("zkzkzkzk") == pytest.approx(3 * 4.7 + 5, abs=0.01)  # two steps, then a copy of them
