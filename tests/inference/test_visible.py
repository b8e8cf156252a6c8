"""Which parts are visible when, by numbers worked by hand."""

import csv
from fractions import Fraction

import pytest

from shared_components.inference.visible import Stretches, VisibleTables, clock, summary
from tests.inference.conftest import shot


def stretches_of(seen, rate=10):
    """Join frames 0.1 s apart; `x` in `seen` marks frames with the part."""
    result = Stretches(None if rate is None else Fraction(1, rate))
    for number, mark in enumerate(seen):
        seconds = None if rate is None else Fraction(number, rate)
        result.add(shot(f"f{number}", seconds), {"shaft": 2.0 if mark == "x" else 0.0})
    return [(s.first, s.last, s.begin and float(s.begin), s.end and float(s.end), s.frames) for s in result.all()]


def test_a_stretch_ends_when_its_last_frame_makes_way_and_a_gap_of_less_than_half_a_second_is_closed():
    """Frame 1 ends at 0.2 s: frame 6 begins 0.4 s later, frame 7 half a second."""
    assert stretches_of(".xxx.") == [("f1", "f3", 0.1, 0.4, 3)]
    assert stretches_of("xx....x") == [("f0", "f6", 0, 0.7, 3)]
    assert stretches_of("xx.....x") == [("f0", "f1", 0, 0.2, 2), ("f7", "f7", 0.7, 0.8, 1)]


def test_frames_far_apart_or_without_times_are_joined_where_they_follow_each_other():
    result = Stretches(Fraction(2))
    for number in range(3):
        result.add(shot(f"f{number}", Fraction(2 * number)), {"shaft": 1.0})
    assert [(s.begin, s.end) for s in result.all()] == [(0, 6)]
    assert stretches_of("xx.x", rate=None) == [("f0", "f1", None, None, 2), ("f3", "f3", None, None, 1)]


@pytest.mark.parametrize(("share", "count"), [(0.0499, 0), (0.05, 1)])
def test_a_part_counts_from_a_twentieth_of_a_percent_on(share, count):
    result = Stretches(Fraction(1, 10))
    result.add(shot("a", Fraction(0)), {"shaft": share})
    assert len(result.all()) == count


def test_parts_are_followed_one_by_one_and_the_largest_share_is_kept():
    result = Stretches(Fraction(1))
    for number, (shaft, wrist) in enumerate([(1.0, 0.0), (3.0, 0.5), (2.0, 0.4)]):
        result.add(shot(f"f{number}", Fraction(number)), {"shaft": shaft, "wrist": wrist})
    assert [(s.part, s.begin, s.end, s.largest) for s in result.all()] == [("shaft", 0, 3, 3.0), ("wrist", 1, 3, 0.5)]


def test_a_sub_folder_begins_anew():
    result = Stretches(Fraction(1, 10))
    for folder in ("a", "b"):
        result.add(shot("1", Fraction(0), folder), {"shaft": 1.0})
    assert [(s.first, s.last) for s in result.all()] == [("a/1", "a/1"), ("b/1", "b/1")]


@pytest.fixture
def tables(tmp_path):
    tables = VisibleTables(tmp_path, Fraction(10))
    for number, share in enumerate([0.0, 12.5, 0.0, 0, 0, 0, 0, 0.25]):
        tables.add(shot(f"f{number}", Fraction(number, 10)), {"shaft": share, "wrist": 1.0, "clasper": 0.0})
    tables.close()
    return tables


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_the_tables_are_written(tables, tmp_path):
    rows = rows_of(tmp_path / "visible.csv")
    assert rows[:3] == [
        ["seconds", "frame", "shaft", "wrist", "clasper"],
        ["0.000", "f0", "0.000", "1.000", "0.000"],
        ["0.100", "f1", "12.500", "1.000", "0.000"],
    ]
    assert len(rows) == 9
    assert rows_of(tmp_path / "intervals.csv") == [
        ["from", "to", "part", "first_frame", "last_frame", "largest_percent"],
        ["0.000", "0.800", "wrist", "f0", "f7", "1.000"],
        ["0.100", "0.200", "shaft", "f1", "f1", "12.500"],
        ["0.700", "0.800", "shaft", "f7", "f7", "0.250"],
    ]


def test_a_summary_says_how_long_and_since_when_or_since_which_frame(tables):
    assert list(summary(tables.parts, tables.stretches.all(), tables.frames)) == [
        "shaft    visible in 25 % of the frames, 2 times, first at 0:00",
        "wrist    visible in 100 % of the frames, once, first at 0:00",
        "clasper  never visible",
    ]
    result = Stretches(None)
    result.add(shot("f7", sequence="day-1"), {"shaft": 1.0})
    (message,) = summary(("shaft",), result.all(), 1)
    assert message == "shaft  visible in 100 % of the frames, once, first at day-1/f7"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3723, "1:02:03")])
def test_positions_in_a_video_are_written_as_players_do(seconds, text):
    assert clock(Fraction(seconds)) == text
