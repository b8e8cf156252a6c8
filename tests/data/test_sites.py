"""A site's frames are listed in time order and read with the site's name in every error."""

from __future__ import annotations

import numpy as np
import pytest

from shared_components.data.readers import reader_names
from shared_components.data.sites import SiteError, frames, load_site, read_image, read_mask, read_pair


@pytest.mark.parametrize("dataset", reader_names())
def test_every_layout_is_listed_and_read_through_its_site(dataset, make_site, layouts):
    site = load_site(make_site(dataset))

    for split in ("train", "validation", "test"):
        listed = frames(site, split)
        assert len(listed) == 4
        for index, frame in enumerate(listed):
            assert frame.site == "hospital-a"
            np.testing.assert_array_equal(read_image(frame), layouts.frame_image(index))
            assert int(read_mask(frame).max()) == len(site.classes) - 1


def test_frames_are_in_time_order_and_videos_as_listed(make_site):
    site = load_site(make_site("sar_rarp50", split={"train": ["video_3", "video_1"]}))

    assert [(frame.video, frame.index) for frame in frames(site, "train")] == [
        *(("video_3", 60 * index) for index in range(4)),
        *(("video_1", 60 * index) for index in range(4)),
    ]


def test_a_range_takes_a_stretch_of_time_and_the_interval_thins_it(make_site):
    split = {"train": [{"OP1": [1, 6]}], "validation": [{"OP1": [6, 8]}]}
    site = load_site(make_site("endovis2015_rigid", frames=8, split=split, frame_interval=2))

    assert [frame.index for frame in frames(site, "train")] == [2, 4, 6]
    assert [frame.index for frame in frames(site, "validation")] == [7]


def test_a_range_beyond_the_videos_end_is_refused(make_site):
    site = load_site(make_site("endovis2015_rigid", split={"train": [{"OP1": [0, 5]}]}))

    with pytest.raises(SiteError, match="split 'train' asks for frames 0 to 5 of OP1, which has 4; correct"):
        frames(site, "train")


@pytest.mark.parametrize("split", [{}, {"train": []}])
def test_an_empty_split_is_refused_by_site_and_file(split, make_site):
    path = make_site(split=split)

    with pytest.raises(SiteError) as error:
        frames(load_site(path), "train")

    assert str(error.value) == (
        f"site hospital-a: {path}: split 'train' has no frames; list its videos under 'split'"
    )


def test_parts_are_merged_where_the_site_asks_for_fewer_classes(make_site, layouts):
    site = load_site(make_site(classes="shaft_manipulator"))

    mask = read_mask(frames(site, "train")[0])

    np.testing.assert_array_equal(mask, np.minimum(layouts.canonical_mask(0), 2))


def test_a_mask_of_another_size_is_refused_by_both_files(make_site, layouts):
    frame = frames(load_site(make_site("sar_rarp50")), "train")[2]
    layouts.write(frame.masks[0], np.zeros((layouts.H, 2), dtype=np.uint8))

    with pytest.raises(SiteError) as error:
        read_pair(frame)

    assert str(error.value) == (
        f"site hospital-a: {frame.masks[0]}: mask is 2x64 but its image {frame.image} is 80x64; "
        "export the mask at the size of its image"
    )


def test_masks_of_native_size_are_allowed_in_the_test_folder_of_pfedsis_only(make_site, layouts):
    site = load_site(make_site("pfedsis_npy"))

    image, mask = read_pair(frames(site, "test")[0])
    assert (image.shape, mask.shape) == ((64, 80, 3), (128, 160))

    frame = frames(site, "train")[0]
    layouts.write(frame.masks[0], mask)
    with pytest.raises(SiteError, match="mask is 160x128"):
        read_pair(frame)


@pytest.mark.parametrize("dataset", reader_names())
def test_a_missing_image_is_refused_by_site_and_file(dataset, make_site):
    frame = frames(load_site(make_site(dataset)), "train")[0]
    frame.image.unlink()

    with pytest.raises(SiteError) as error:
        read_image(frame)

    assert str(error.value).startswith(f"site hospital-a: {frame.image}: file is missing; ")
