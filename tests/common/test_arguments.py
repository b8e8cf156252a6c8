"""What is refused by method, name and value, and in which words."""

import re

import pytest

from shared_components.common.arguments import between, check_mode, one_of, require_list, true_or_false


@pytest.mark.parametrize(
    "value, low, high, ends, taken",
    [
        (0, 0, 1, "[]", True),
        (1, 0, 1, "[]", True),
        (0.0, 0, 1, "(]", False),
        (1.0, 0, 1, "(]", True),
        (0.0, 0, 1, "[)", True),
        (1.0, 0, 1, "[)", False),
        (5e-324, 0, 1, "()", True),
        (0, 0, 1, "()", False),
        (1, 0, 1, "()", False),
        (-1e-9, 0, 1, "[]", False),
        (1.5, 0, 1, "[]", False),
        (1e308, 0, float("inf"), "[]", True),
    ],
)
def test_a_range_holds_its_ends_or_not(value, low, high, ends, taken):
    if taken:
        between("fedld", "keep", value, low, high, ends=ends)
    else:
        with pytest.raises(ValueError, match=re.escape(f"fedld: keep is {value}; it is a number")):
            between("fedld", "keep", value, low, high, ends=ends)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 10**400, "1", None, True, False, [1], 1j])
def test_what_is_no_finite_number_is_never_in_a_range(value):
    for whole in (False, True):
        with pytest.raises(ValueError, match="fedprox: mu is"):
            between("fedprox", "mu", value, 0, whole=whole)


def test_whole_numbers_are_of_their_type():
    between("krum", "faults", 2, 0, whole=True)
    for value in (2.0, 2.5):
        with pytest.raises(ValueError, match="it is a whole number"):
            between("krum", "faults", value, 0, whole=True)


def test_none_is_taken_where_it_stands_for_something():
    between("multi_krum", "keep", None, 1, whole=True, null="n - f")
    with pytest.raises(ValueError, match=r"multi_krum: keep is 0; it is a whole number, .*, or null for n - f"):
        between("multi_krum", "keep", 0, 1, whole=True, null="n - f")


@pytest.mark.parametrize(
    "given, words",
    [
        ({"low": 0}, "m: a is -1; it is a number, at least 0"),
        ({"low": 0, "ends": "(]"}, "m: a is -1; it is a number, above 0"),
        ({"low": 0, "high": 1, "ends": "()"}, "m: a is -1; it is a number, above 0 and below 1"),
        ({"low": 1, "high": 8, "whole": True}, "m: a is -1; it is a whole number, at least 1 and at most 8"),
    ],
)
def test_the_sentence_names_the_range(given, words):
    with pytest.raises(ValueError) as raised:
        between("m", "a", -1, **given)
    assert str(raised.value) == words


@pytest.mark.parametrize("value", ["false", "", 0, 1, None])
def test_only_true_and_false_are_truth_values(value):
    true_or_false("mat_fl", "soft", False)
    with pytest.raises(ValueError, match=re.escape(f"mat_fl: soft is {value!r}; it is true or false")):
        true_or_false("mat_fl", "soft", value)


@pytest.mark.parametrize("value", ["encoder", None, 3, ["encoder", 1], {"encoder": 1}])
def test_a_text_is_no_list_of_names(value):
    require_list([], "fedper: personal", least=0)
    require_list(("encoder", "head"), "fedper: personal")
    with pytest.raises(ValueError, match=r"fedper: personal is .*; write a list"):
        require_list(value, "fedper: personal")


@pytest.mark.parametrize("value", ["votes", None, ["equal"], True])
def test_a_choice_is_one_of_those_listed(value):
    one_of("feddp", "weighting", "equal", ("equal", "samples"))
    with pytest.raises(ValueError, match=re.escape(f"feddp: weighting {value!r} is unknown; use one of equal, s")):
        one_of("feddp", "weighting", value, ("equal", "samples"))


def test_a_mode_is_corrected_or_as_released():
    check_mode("fedprox", "as_released")
    with pytest.raises(ValueError, match="fedprox: mode 'both' is unknown; use one of corrected, as_released"):
        check_mode("fedprox", "both")
