"""Sisvse: 32 classes become parts, and sets of images stand for videos."""

from __future__ import annotations

import numpy as np
import pytest

from shared_components.data.check import check_site
from shared_components.data.files import DataError
from shared_components.data.readers import find_reader
from shared_components.data.samples import samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from tests.data.conftest import FOUR, write, write_sisvse

READER = find_reader("sisvse")


def test_heads_are_claspers_bodies_shafts_and_the_rest_is_background(tmp_path):
    write(tmp_path / "a.png", np.arange(32, dtype=np.uint8)[None])

    parts = READER.read_target("label", (tmp_path / "a.png",))

    expected = [
        0, 3, 1,  # background, HarmonicAce
        3, 2, 1, 3, 2, 1,  # MarylandBipolarForceps, CadiereForceps
        3, 1, 3, 1,  # CurvedAtraumaticGrasper, Stapler
        3, 2, 1, 3, 2, 1,  # clip appliers
        0, 0, 0, 0, 0,  # suction, needle, endotip, bag, drain
        0, 0, 0, 0, 0,  # organs
        0, 0, 0,  # gauze, other instruments, other tissues
    ]  # fmt: skip
    assert parts.tolist() == [expected]


def test_images_of_real_sets_lie_in_one_folder_and_each_set_has_its_own(tmp_path):
    write_sisvse(tmp_path, 8, 2)

    first, second = (READER.frames(tmp_path, name) for name in ("real_train_1", "real_val_1"))

    folders = {image.parent for _, image, _ in (*first, *second)}
    assert folders == {tmp_path / "images/real"}
    assert {image for _, image, _ in first}.isdisjoint(image for _, image, _ in second)
    assert READER.images(tmp_path, "real_train_1") == {number: image for number, image, _ in first}
    assert "real" not in READER.videos(tmp_path)


def test_numbers_are_places_in_natural_order_and_a_missing_file_moves_none(tmp_path):
    write_sisvse(tmp_path, 2, 11)  # ..._2 comes before ..._10
    listing = READER.frames(tmp_path, "manual_syn")
    endings = [int(image.stem.split("_")[-1]) for _, image, _ in listing]
    listing[3][1].unlink()
    listing[5][2]["label"][0].unlink()

    assert endings == [number for number, _, _ in listing] == list(range(11))
    assert READER.frames(tmp_path, "manual_syn") == listing
    assert set(READER.images(tmp_path, "manual_syn")) == set(range(11)) - {3}


def test_another_folder_than_the_datasets_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no sets of images and masks .*; set 'root' to the folder miccai"):
        READER.videos(tmp_path)


def test_clips_of_single_images_repeat_them_where_the_site_says_so(make_site):
    path = make_site("sisvse")
    with pytest.raises(SiteError, match=r"the rate of sisvse's frame numbers is not known; .*'history: false'"):
        samples(load_site(path), "train", FOUR)

    site = load_site(make_site("sisvse", history=False))

    assert check_site(site, FOUR) == []
    assert all(len(set(sample.images)) == 1 and len(sample.images) == 4 for sample in samples(site, "train", FOUR))
