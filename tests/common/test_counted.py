import pytest

from shared_components.common.counted import counted


@pytest.mark.parametrize(("number", "noun", "expected"), [
    (0, "video", "0 videos"), (1, "video", "1 video"), (2, "labelled frame", "2 labelled frames"),
    (1234, "round", "1,234 rounds"),
])  # fmt: skip
def test_one_thing_is_in_the_singular(number, noun, expected):
    assert counted(number, noun) == expected
