"""A site's samples are listed in time order and read with the site's name in every error."""

from __future__ import annotations

import numpy as np
import pytest

from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from tests.data.conftest import H, canonical_mask, depth_map, frame_image, own_spec, write


def test_frames_are_in_time_order_and_videos_as_listed(make_site):
    site = load_site(make_site("sar_rarp50", split={"train": ["video_3", "video_1"]}))

    assert [(frame.video, frame.index) for frame in samples(site, "train")] == [
        *(("video_3", 60 * index) for index in range(4)),
        *(("video_1", 60 * index) for index in range(4)),
    ]


def test_a_range_takes_a_stretch_of_time_and_the_interval_thins_it(make_site):
    split = {"train": [{"OP1": [1, 6]}], "validation": [{"OP1": [6, 8]}]}
    site = load_site(make_site("endovis2015_rigid", frames=8, split=split, frame_interval=2))

    assert [frame.index for frame in samples(site, "train")] == [2, 4, 6]
    assert [frame.index for frame in samples(site, "validation")] == [7]


def test_a_range_beyond_the_videos_end_is_refused(make_site):
    site = load_site(make_site("endovis2015_rigid", split={"train": [{"OP1": [0, 5]}]}))

    with pytest.raises(SiteError, match="split 'train' asks for frames 0 to 5 of OP1, which has 4; correct"):
        samples(site, "train")


@pytest.mark.parametrize(
    ("dataset", "classes", "ids"),
    [
        ("endovis2017", "shaft_manipulator", [0, 1, 2, 2]),
        ("endovis2017", "foreground", [0, 1, 1, 1]),
        ("endovis2018", "foreground", [0, 1, 1, 1]),
        ("sar_rarp50", "foreground", [0, 1, 1, 1]),
    ],
)
def test_parts_are_merged_where_the_site_asks_for_fewer_classes(dataset, classes, ids, make_site):
    site = load_site(make_site(dataset, classes=classes))
    mask = read_sample(samples(site, "train")[0]).targets["label"]
    np.testing.assert_array_equal(mask, np.array(ids)[canonical_mask(0)])


@pytest.mark.parametrize(("dataset", "noun"), [("sar_rarp50", "mask"), ("scared", "depth")])
def test_a_target_of_another_size_is_refused_by_both_files(dataset, noun, make_site):
    frame = samples(load_site(make_site(dataset)), "train", own_spec(dataset))[2]
    ((file,),) = frame.targets.values()
    write(file, np.zeros((H, 2), dtype=np.uint16 if noun == "depth" else np.uint8))

    with pytest.raises(SiteError) as error:
        read_sample(frame)

    assert str(error.value) == (
        f"site hospital-a: {file}: {noun} is 2x64 but its image {frame.images[0]} is 80x64; "
        f"export the {noun} at the size of its image"
    )


def test_masks_of_native_size_are_allowed_in_the_test_folder_of_pfedsis_only(make_site):
    site = load_site(make_site("pfedsis_npy"))

    item = read_sample(samples(site, "test")[0])
    mask = item.targets["label"]
    assert (item.images.shape, mask.shape) == ((1, 64, 80, 3), (128, 160))

    frame = samples(site, "train")[0]
    write(frame.targets["label"][0], mask)
    with pytest.raises(SiteError, match="mask is 160x128"):
        read_sample(frame)


def test_the_cropped_layout_of_ternaus_needs_no_masks_without_targets(tmp_path):
    write(tmp_path / "data/instrument_dataset_1/images/frame003.png", frame_image(3))
    split = "{train: [instrument_dataset_1]}"
    (tmp_path / "site.yaml").write_text(f"dataset: endovis2017\nroot: data\nsplit: {split}\n")

    (sample,) = samples(load_site(tmp_path), "train", SampleSpec(targets=()))

    assert (sample.index, sample.targets) == (3, {})


@pytest.mark.parametrize(("target", "others"), [("weather", "none"), ("depth", "scared")])
def test_a_target_that_the_dataset_has_not_is_refused_with_those_that_have_it(target, others, make_site):
    path = make_site()

    with pytest.raises(SiteError) as error:
        samples(load_site(path), "train", SampleSpec(targets=(target,)))

    assert str(error.value) == (
        f"site hospital-a: {path}: endovis2017 has no {target}; datasets with {target}: {others}"
    )


def test_a_site_with_depth_is_read_in_millimetres(make_site):
    site = load_site(make_site("scared", task="depth"))

    listed = samples(site, "train", SampleSpec(targets=("depth",)))
    item = read_sample(listed[2])

    assert (site.task, site.classes, len(listed)) == ("depth", (), 4)
    assert item.name == "dataset_1_keyframe_1-2"
    np.testing.assert_array_equal(item.targets["depth"], depth_map(2) / np.float32(256))


def test_a_dataset_without_labels_has_no_classes_to_choose(make_site):
    with pytest.raises(SiteError, match="'classes' is 'parts', but scared has no label masks; leave it out"):
        load_site(make_site("scared", classes="parts"))
