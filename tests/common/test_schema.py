"""Declared types and ranges, and arguments of methods: what is refused by name and value, and in which words."""

import math
import re
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from shared_components.common.arguments import between, true_or_false
from shared_components.common.schema import SHOWN, Schema, check_keys, fits, parse, short_repr, words

Count = Annotated[int, Meta(ge=1, le=9)]
Share = Annotated[float, Meta(gt=0, le=1)]
DEEP: list = []
for _ in range(5000):
    DEEP = [DEEP]


class Inner(Schema):
    """A part."""

    share: Share
    note: Annotated[str, Meta(max_length=5, description="write a short text")] = ""


class Outer(Schema):
    """A whole."""

    count: Count
    inner: Inner | None = None
    parts: Annotated[tuple[Inner, ...], Meta(max_length=2)] = ()
    rates: Annotated[dict[str, Share], Meta(max_length=3)] = msgspec.field(default_factory=dict)
    kind: Literal["a", "b"] = "a"
    seen: bool = False


GOOD = {"count": 3, "inner": {"share": 0.5}, "parts": [{"share": 1}], "rates": {"x": 1.0}, "kind": "b", "seen": True}


def test_what_fits_is_built_and_a_range_is_the_declared_one():
    made = parse(Outer, GOOD)
    assert made == Outer(3, Inner(0.5), (Inner(1.0),), {"x": 1.0}, "b", True)
    assert parse(Outer, {"count": 1}) == Outer(1)
    for value, good in [(1, True), (9, True), (10, False), (2**70, False)]:
        assert fits(value, Count) is good
    assert words(Count | None) == "it is a whole number, at least 1 and at most 9, or null"
    assert words(Annotated[float, Meta(ge=0, lt=1)]) == "it is a number, at least 0 and below 1"


@pytest.mark.parametrize("changes, sentence", [
    ({"count": 0}, "f: count is 0; it is a whole number, at least 1 and at most 9"),
    ({"count": True}, "f: count is True; it is a whole number"), ({"count": 3.0}, "f: count is 3.0; it is"),
    ({"count": "3"}, "f: count is '3'; it is"),
    ({"count": 10**5000}, "f: count is a whole number of over 80 digits; it is"),
    ({"count": None}, "f: count is None; it is"),
    ({"inner": {"share": 0}}, "f: inner.share is 0; it is a number, above 0 and at most 1"),
    ({"inner": {"share": math.nan}}, "f: inner.share is nan; it is a number"),
    ({"inner": {"share": math.inf}}, "f: inner.share is inf; it is a number"),
    ({"inner": {}}, "f: 'inner.share' is missing; add it"),
    ({"inner": {"share": 1, "notes": ""}}, "f: unknown key 'inner.notes'; did you mean 'note'? known keys: share, no"),
    ({"inner": {"share": 1, "note": "longer"}}, "f: inner.note is 'longer'; write a short text"),
    ({"inner": [1]}, "f: inner is [1]; write its settings as 'name: value'; known keys: share, note"),
    ({"parts": [{"share": 1}, {"share": 2}]}, "f: parts[2].share is 2; it is"),
    ({"parts": [{"share": 1}] * 3}, "f: parts is [{'share': 1}, "),
    ({"rates": {"x": 1, "y\n": "1"}}, r"f: rates.y\n is '1'; it is a number"),
    ({"rates": {"x": 1, 3: 1}}, "f: rates is {'x': 1, 3: 1}; write its settings"),
    ({"kind": "c"}, "f: kind is 'c'; use one of a, b"), ({"kind": ["a"]}, "f: kind is ['a']; use one of a, b"),
    ({"seen": 1}, "f: seen is 1; it is true or false"), ({"inner": DEEP}, "f: inner is [[[[...]]]]; write"),
    ({"kind": "x" * 10**6}, "f: kind is 'xxx"),
    ({3: 1}, "f: unknown key 3; known keys: count, inner, parts, rates, kind, seen"),
    ({"cuont": 1}, "f: unknown key 'cuont'; did you mean 'count'? known keys"),
])  # fmt: skip
def test_the_first_part_that_is_wrong_is_named_by_its_path(changes, sentence):
    with pytest.raises(LookupError) as refused:
        parse(Outer, GOOD | changes, "f", error=LookupError)
    assert refused.value.args[0].startswith(sentence) and len(refused.value.args[0]) < 500
    assert refused.value.args[0].isprintable()


@pytest.mark.parametrize("given", [None, [], "text", 3, [("count", 1)], {1}])
def test_what_is_no_mapping_is_refused(given):
    with pytest.raises(ValueError, match=r"it is .*; write its settings as 'name: value'; known keys: share, note"):
        parse(Inner, given)
    with pytest.raises(ValueError, match=r"^f: server is .*; write"):
        check_keys(["share"], given, "f", key="server.{}")


@pytest.mark.parametrize("value", [DEEP, "\x1b\n\u202e\ud800", {"a": DEEP}, "x" * 10**6, object(), [10**5000], b"\0"])
def test_what_is_shown_is_short_and_prints_as_it_reads(value: Any):
    assert short_repr(value).isprintable() and len(short_repr(value)) <= 2 * SHOWN + 3


@pytest.mark.parametrize("value, low, high, ends, taken", [
    (0, 0, 1, "[]", True), (1, 0, 1, "[]", True), (-1e-9, 0, 1, "[]", False), (1.5, 0, 1, "[]", False),
    (0.0, 0, 1, "(]", False), (1.0, 0, 1, "(]", True), (0.0, 0, 1, "[)", True), (1.0, 0, 1, "[)", False),
    (5e-324, 0, 1, "()", True), (0, 0, 1, "()", False), (1, 0, 1, "()", False), (1e308, 0, float("inf"), "[]", True),
])  # fmt: skip
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


def test_whole_numbers_are_of_their_type_and_none_stands_for_something():
    between("krum", "faults", 2, 0, whole=True)
    for value in (2.0, 2.5):
        with pytest.raises(ValueError, match="it is a whole number"):
            between("krum", "faults", value, 0, whole=True)
    between("multi_krum", "keep", None, 1, whole=True, null="n - f")
    with pytest.raises(ValueError, match=r"multi_krum: keep is 0; it is a whole number, .*, or null for n - f"):
        between("multi_krum", "keep", 0, 1, whole=True, null="n - f")


@pytest.mark.parametrize("value", ["false", "", 0, 1, None])
def test_only_true_and_false_are_truth_values(value):
    true_or_false("mat_fl", "soft", False)
    with pytest.raises(ValueError, match=re.escape(f"mat_fl: soft is {value!r}; it is true or false")):
        true_or_false("mat_fl", "soft", value)
