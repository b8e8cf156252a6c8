"""The table of values, and the classes that follow from it."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from shared_components.data.custom.ids import class_ids, own_classes, parse_ids
from shared_components.data.files.classes import CLASS_MAPS, IGNORED
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site

BACKGROUND = "background"


def applied(given, mask):
    table = parse_ids(given)
    return class_ids(table, own_classes(table.values(), None)[0]).apply(np.array(mask), Path("m.png")).tolist()


def test_values_become_the_places_of_their_names_and_colours_are_written_in_any_way():
    given = {5: "b", 9: "a", 7: "b", 255: "ignore"}
    assert applied(given, [[0, 5, 9], [7, 255, 0]]) == [[0, 2, 1], [2, IGNORED, 0]]
    assert applied({0: "tool", 255: "background"}, [[0, 255]]) == [[1, 0]]
    assert applied({0: "ignore", 1: "tool", 2: "background"}, [[0, 1, 2]]) == [[IGNORED, 1, 0]]
    given = {"#FF0000": "a", (0, 255, 0): "b", "0, 0, 255": "c", 200: "ignore"}
    mask = np.array([[(255, 0, 0), (0, 255, 0), (0, 0, 255), (200, 200, 200), (0, 0, 0)]], np.uint8)
    assert applied(given, mask) == [[1, 2, 3, IGNORED, 0]]


@pytest.mark.parametrize(("names", "given", "of_masks", "of_site"), [
    (["b", "a"], None, (BACKGROUND, "a", "b"), None), (["clasper", "wrist", "shaft"], None, CLASS_MAPS["parts"], None),
    (["clasper", "shaft"], None, (BACKGROUND, "clasper", "shaft"), None),
    (["clasper", "shaft"], "parts", CLASS_MAPS["parts"], None),
    (["clasper", "shaft"], "foreground", CLASS_MAPS["parts"], CLASS_MAPS["foreground"]),
    (["instrument"], None, CLASS_MAPS["foreground"], None), (["b"], ["c", "b", "a"], (BACKGROUND, "c", "b", "a"), None),
    (["b"], ["background", "b"], (BACKGROUND, "b"), None),
])  # fmt: skip
def test_classes_follow_from_the_names_or_are_listed(names, given, of_masks, of_site):
    assert own_classes([*names, "background", "ignore"], given) == (of_masks, of_site or of_masks)


def test_there_may_be_255_classes():
    names = [f"class {number}" for number in range(255)]
    assert len(own_classes(names[:254], None)[0]) == len(own_classes(names[:2], names[:254])[0]) == 255
    for given in (None, names):
        with pytest.raises(ValueError, match="'classes' has 256 names; there may be 255, background included"):
            own_classes(names, given)


@pytest.mark.parametrize(("given", "sentence"), [
    (None, "'ids' is None; .* a colour needs quotes"), ({}, "'ids' is {}; write"),
    ([1, 2], r"'ids' is \[1, 2\]; write"),
    *(({value: "a"}, re.escape(f"'ids' has the value {value!r}; write"))
      for value in (-1, 65536, 1.5, True, math.nan, None, "red", "#ff00", (1, 2), (1, 2, 256), "1, -2, 3")),
    ({1: "a", "#010101": "b"}, "'ids' has #010101 twice"),
    ({"#000001": "a", (0, 0, 1): "b"}, "'ids' has #000001 twice"),
    ({"#000001": "a", 256: "b"}, "'ids' has the value 256 beside colours"),
    ({1: 5}, "'ids' calls 1 5; a class's name is a text"), ({1: ""}, "'ids' calls 1 ''"),
    ({1: "a, b"}, "'ids' calls 1 'a, b'; .*without commas"), ({1: "a\nb"}, "'ids' calls 1"),
    ({1: "mean"}, "and not 'mean'"), ({1: "x" * 61}, "at most 60 letters"),
    ({1: "background", 2: "ignore"}, "names no class besides background"),
])  # fmt: skip
def test_a_wrong_table_is_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse_ids(given)


@pytest.mark.parametrize(("given", "sentence"), [
    ("tools", "'classes' is 'tools'; write a list of names, or one of parts"),
    ("parts", "'classes' is 'parts', which is shaft, wrist, clasper, and 'ids' names 'a'; give"),
    (["b"], "'classes' has no 'a', which 'ids' names"), (["a", "a"], "'classes' has 'a' twice"),
    (["a", "ignore"], "lists 'ignore', which is no class"), (["a", 3], "'classes' lists 3; a class's name"),
    ([["a"]], r"'classes' lists \['a'\]; a class's name"), ([], r"'classes' is \[\]; write a list"),
    (["a", *map(str, range(255))], "'classes' has 257 names; there may be 255"), (5, "'classes' is 5; write a list"),
])  # fmt: skip
def test_wrong_classes_are_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        own_classes(["a"], given)


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"ids": None}, "has no 'ids', which 'frames' needs"),
    ({"images": "{video}", "masks": "masks"}, "write {video} in both, or in neither"),
    ({"images": "elsewhere/{video}"}, r"contains no images or video files at 'elsewhere/\{video\}'"),
    ({"masks": "{name}"}, "the possible words in braces are {video}"),
    ({"masks": "*/{video}"}, r"write at most one \*, in the last part"),
    ({"masks": "{video}/*_*.png"}, r"write at most one \*, in the last part"),
    ({"first_frame": 2}, "'first_frame' is 2; write 0 or 1"),
    ({"first_frame": True}, "'first_frame' is True; write 0 or 1"),
    ({"partly_labelled": "yes"}, "'partly_labelled' is 'yes'; it is true or false"),
    ({"axes": "stored"}, "'axes' is for 'nifti'"),
    ({"dataset": "nifti", "axes": "RAS"}, "'axes' is 'RAS'; write header or stored"),
    ({"dataset": "nifti", "masks": "masks/{video}"}, "write one volume per video, such as 'masks/{video}.nii.gz'"),
    ({"dataset": "nifti", "masks": "{video}.nii", "ids": {"#ff0000": "a"}}, "NIfTI volumes contain numbers"),
    ({"dataset": "endovis2017"}, "'ids' is for data of one's own, but endovis2017 is a public data set"),
    ({"dataset": "frame"}, "unknown dataset 'frame'; did you mean 'frames'"),
])  # fmt: skip
def test_what_does_not_describe_ones_own_data_is_refused_by_its_key(changes, sentence, own_site):
    path = own_site(**changes)
    with pytest.raises(SiteError, match=sentence) as error:
        load_site(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)
