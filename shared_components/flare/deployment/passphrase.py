"""Refuse passphrases that are easy to guess: common words, keyboard rows, repetitions.

The estimate in bits follows zxcvbn (Wheeler, USENIX Security 2016): the cheapest way to spell a passphrase with known
words, copies of earlier parts, and single characters.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path

from shared_components.common.plain_yaml import read_own_yaml

LEAST_LETTERS = 12
LEAST_BITS = 50.0  # 36 years at a million guesses a second, each of 600,000 rounds
LONGEST = 128  # letters that count
WORD_BITS, COPY_BITS, DATE_BITS = 8.0, 5.0, 15.0
Piece = tuple[int, int, float]  # begin, end and bits of a part of a passphrase
ROWS = ((0, "1234567890-="), (0, "!@#$%^&*()_+"), (1, "qwertyuiop[]"), (2, "asdfghjkl;'"), (3, "zxcvbnm,./"))
KEYS = {key: 100 * row + column for row, keys in ROWS for column, key in enumerate(keys)}  # positions
# kinds of characters, each with its number of characters
POOLS = ((r"[a-z]", 26), (r"[A-Z]", 26), (r"[0-9]", 10), (r"[ -/:-@\[-`{-~]", 33), (r"[^ -~]", 100))
LEET = str.maketrans("013457@$!", "oieastasi")
DATE = re.compile(r"\d{1,4}([-./ ])\d{1,2}\1\d{1,4}")
YEARS = frozenset(map(str, range(1940, 2041)))
WORDS = frozenset(read_own_yaml(Path(__file__).with_name("common_words.yaml").read_text(encoding="utf-8")))


def passphrase_problem(passphrase: str, names: Iterable[str] = ()) -> str:
    """Return why a passphrase is refused, without the subject of the sentence, or an empty text.

    Words in ``names``, of the federation and its parties, count as known.
    """
    if len(passphrase) < LEAST_LETTERS:
        return f"has {len(passphrase)} letters; give at least {LEAST_LETTERS}"
    known = WORDS | YEARS | {word for name in names for word in _words(name) if len(word) >= 3}
    if (bits := estimate_bits(passphrase, known)) >= LEAST_BITS:
        return ""
    return (
        f"is easy to guess ({bits:.0f} of {LEAST_BITS:.0f} bits): common words, names of the federation, keyboard "
        "rows, sequences and repetitions count little; take one from openssl rand -base64 24, or six unrelated words"
    )


def _words(name: str) -> list[str]:
    parts = "".join(c if c.isalnum() else " " for c in name.casefold()).split()
    return [*parts, "".join(parts)]


def estimate_bits(passphrase: str, known: frozenset[str] = WORDS | YEARS) -> float:
    """Estimate the bits of a passphrase: the binary logarithm of the guesses needed for its first 128 letters."""
    text = unicodedata.normalize("NFKC", passphrase)[:LONGEST]
    letter = math.log2(sum(size for kind, size in POOLS if re.search(kind, text)))
    lower = "".join(c.lower()[:1] for c in text)  # one letter for each letter
    dates = ((*match.span(), DATE_BITS) for match in DATE.finditer(text))
    pieces = [*_known_words(lower, known), *_copies(lower), *dates]
    least = [0.0]  # bits of the first letters, by their number
    for end in range(1, len(text) + 1):
        ways = [least[begin] + bits for begin, stop, bits in pieces if stop == end]
        least.append(min([least[-1] + letter, *ways]))
    return least[-1]


def _known_words(text: str, known: frozenset[str]) -> Iterator[Piece]:
    for plain in (text, text.translate(LEET)):
        for begin, end in combinations(range(len(plain) + 1), 2):
            part = plain[begin:end]
            if part in known or part[::-1] in known:
                yield begin, end, WORD_BITS


def _copies(text: str) -> Iterator[Piece]:
    """Yield parts whose steps, in the alphabet or on a keyboard, repeat earlier steps: 123, qwe, abcabc, aabbcc."""
    keys = [KEYS.get(c, (1000 + place) ** 2) for place, c in enumerate(text)]  # unknown keys make no equal steps
    for places in ([ord(c) for c in text], keys):
        steps = [after - before for before, after in pairwise(places)]
        for begin in range(1, len(steps)):
            longest = max(_shared(steps, earlier, begin) for earlier in range(begin))
            yield from ((begin + 1, begin + 1 + length, COPY_BITS) for length in range(2, longest + 1))


def _shared(steps: Sequence[int], first: int, second: int) -> int:
    """Return the number of equal steps of two parts; the first part may overlap the second."""
    count = 0
    while second + count < len(steps) and steps[first + count] == steps[second + count]:
        count += 1
    return count
