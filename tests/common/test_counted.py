import pytest

from shared_components.common.counted import counted, first_few


@pytest.mark.parametrize(("number", "noun", "expected"), [
    (0, "video", "0 videos"), (1, "video", "1 video"), (2, "labelled frame", "2 labelled frames"),
    (1234, "round", "1,234 rounds"),
])  # fmt: skip
def test_one_thing_is_in_the_singular(number, noun, expected):
    assert counted(number, noun) == expected


def test_a_long_list_is_its_first_entries_and_a_count():
    assert first_few(map(str, range(6))) == "0, 1, 2, 3, 4, 5" and first_few([]) == ""
    assert first_few(map(str, range(1240)), "; ", most=2) == "0; 1 and 1,238 more"
