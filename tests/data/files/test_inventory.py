"""An inventory counts used and left-out parts, and lists the parts that need consent."""

import pytest

from shared_components.data.files.inventory import Inventory, LeftOut, left_out_files


def test_files_are_left_out_by_reason_and_by_folder_and_have_a_line_in_the_table():
    kinds = {path: "images" for path in ("a/1.png", "a/2.png", "b/c/1.png")}
    kinds |= {"b/2.png": "masks", "d.dcm": "unread files"}
    left_out = left_out_files(kinds, {"a/1.png"}, lambda path: "odd")
    assert [(part.kind, part.names, part.count, part.whole_folder) for part in left_out] == [
        ("images", ("a/2.png",), 1, False),
        ("images", ("b/",), 1, True),
        ("masks", ("b/",), 1, True),
        ("unread files", ("d.dcm",), 1, False),
    ]
    names = tuple(f"{n}.png" for n in range(5))
    parts = (LeftOut("images", names, "no mask", 5),)
    assert list(Inventory({"images": 7, "splits": 2}, parts, {"splits": "train, test"}).lines()) == [
        "            found     used  left out",
        "  images       12        7         5",
        "  splits        2        2         0  train, test",
        "  left out: 5 images (no mask): 0.png, 1.png, 2.png, ...",
    ]


@pytest.mark.parametrize(("used", "count", "whole", "agreed", "asked"), [
    (19, 1, False, False, False),  # one in twenty
    (18, 1, False, False, True), (1000, 1, True, False, True), (1, 9, True, True, False), (0, 1, False, False, True),
])  # fmt: skip
def test_more_than_one_in_twenty_or_a_folder_needs_consent(used, count, whole, agreed, asked):
    left = LeftOut("pages", ("x",), "odd", count, whole, agreed)
    assert bool(Inventory({"pages": used}, (left,)).needs_consent) == asked
    parts = tuple(LeftOut("images", (name,), name, 1) for name in "ab")  # small parts add up
    assert not Inventory({"images": 30}, parts[:1]).needs_consent
    assert len(Inventory({"images": 30}, parts).needs_consent) == 2
