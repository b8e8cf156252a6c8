"""A site's samples are listed in time order, then the samples of an added site; errors name the site."""

import cv2
import numpy as np
import pytest
import yaml

from shared_components.cli import main
from shared_components.data.check import check_site, readable_samples
from shared_components.data.dataset import SampleDataset
from shared_components.data.profile_items import style_statistics
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from tests.data.conftest import canonical_mask, write_sisvse, write_yaml


def test_frames_are_in_time_order_in_a_range_and_thinned_by_the_interval(make_site):
    site = load_site(make_site("sar_rarp50", split={"train": ["video_3", "video_1"]}))
    listed = [(frame.video, frame.index) for frame in samples(site, "train")]
    assert listed == [(video, 60 * index) for video in ("video_3", "video_1") for index in range(4)]
    split = {"train": [{"OP1": [1, 6]}], "validation": [{"OP1": [6, 8]}]}
    site = load_site(make_site("endovis2015_rigid", frames=8, split=split, frame_interval=2))
    assert [frame.index for frame in samples(site, "train")] == [2, 4, 6]
    assert [frame.index for frame in samples(site, "validation")] == [7]
    site = load_site(make_site("endovis2015_rigid", split={"train": [{"OP1": [0, 9]}]}))
    with pytest.raises(SiteError, match="split 'train' asks for frames 0 to 9 of OP1, which has 8; correct"):
        samples(site, "train")


@pytest.mark.parametrize(("target", "others"), [("weather", "none"), ("depth", "scared, stereomis")])
def test_a_target_that_the_dataset_lacks_is_refused_with_the_datasets_that_have_it(target, others, make_site):
    path = make_site()
    with pytest.raises(SiteError) as error:
        samples(load_site(path), "train", SampleSpec(targets=(target,)))
    message = f"site hospital-a: {path}: endovis2017 has no {target}; datasets with {target}: {others}"
    assert str(error.value) == message


@pytest.fixture
def other(tmp_path):
    """Return a function that writes a second site beside the first one; its site.yaml."""

    def make(**changes):
        names = write_sisvse(tmp_path / "simulated/data", 3, 4)
        config = {"dataset": "sisvse", "root": "data", "history": False, "split": {"train": names[:2]}, **changes}
        return write_yaml(tmp_path / "simulated/site.yaml", config)

    return make


ADDED = {"also_trains_on": "simulated/site.yaml"}


def test_training_samples_are_the_sites_own_and_then_the_others_and_are_counted_so(make_site, other, capsys):
    file, plain = other(), samples(load_site(make_site()), "train")
    listed = samples(load_site(make_site(**ADDED)), "train")
    assert listed[:4] == plain and [sample.added for sample in listed] == [False] * 4 + [True] * 8
    assert [sample.images for sample in listed[4:]] == [s.images for s in samples(load_site(file), "train")]
    assert {sample.site for sample in listed[4:]} == {"simulated"}
    for split in ("validation", "test"):
        other(split={"train": ["domain_random_syn"], split: ["manual_syn"]})
        plain = samples(load_site(make_site()), split)
        assert samples(load_site(make_site(**ADDED)), split) == plain
    file = other()
    assert main(["check-data", str(make_site(**ADDED))]) == 0
    lines = capsys.readouterr().out
    assert f"its training frames include those of {file}" in lines
    assert [line.split()[:3] for line in lines.splitlines() if line.startswith("  train ")] == [["train", "1", "12"]]


def test_added_labels_have_the_sites_classes_and_added_files_are_checked_as_its_own(make_site, other):
    other()
    for classes, ids in (("parts", [0, 1, 2, 3]), ("foreground", [0, 1, 1, 1])):
        sample = samples(load_site(make_site(classes=classes, **ADDED)), "train")[4 + 2]
        label = read_sample(sample).targets["label"]
        assert np.array_equal(label, np.array(ids, np.uint8)[canonical_mask(2)])
    # EndoVis's images are half a second apart; the added images belong to no video and are repeated
    clips = samples(load_site(make_site(**ADDED)), "train", SampleSpec(frames=2, interval=0.5))
    assert clips[1].images[0] != clips[1].images[1] and clips[5].images[0] == clips[5].images[1]
    other()
    path = make_site(quarantine=0.1, **ADDED)
    broken = samples(load_site(path), "train")[7]
    broken.images[0].write_bytes(b"")
    (problem,) = check_site(load_site(path))
    assert problem.sample == broken and problem.quarantined and str(broken.images[0]) in str(problem)
    readable, aside = readable_samples(load_site(path), "train")
    assert len(readable) == 11 and aside == [broken]
    assert "1 of 12 frames" in refused(make_site(quarantine=0.05, **ADDED), lambda s: readable_samples(s, "train"))


def test_the_style_that_a_site_publishes_is_of_its_own_frames(make_site, other):
    other()
    site, plain = load_site(make_site(**ADDED)), load_site(make_site())
    for sample in samples(site, "train"):
        if sample.added:
            cv2.imwrite(str(sample.images[0]), np.full((64, 80, 3), 255, np.uint8))
    sets = [SampleDataset(samples(one, "train"), height=32, width=32, site=one) for one in (site, plain)]
    assert [len(dataset) for dataset in sets] == [12, 4]
    ours, theirs = map(style_statistics, sets)
    assert ours[0].equal(theirs[0]) and ours[1].equal(theirs[1])


def refused(path, use=lambda site: None):
    with pytest.raises(SiteError) as error:
        use(load_site(path))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("value", [3, "", True, None, ["simulated/site.yaml"]])
def test_a_value_that_is_no_path_is_refused(make_site, tmp_path, value):
    path = make_site()
    path.write_text(path.read_text() + yaml.safe_dump({"also_trains_on": value}))
    assert f"'also_trains_on' is {value!r}; write the path of another site.yaml" in refused(path)


@pytest.mark.parametrize(("own", "others", "sentence"), [
    ({"also_trains_on": "absent.yaml"}, {}, "absent.yaml, which is not a file"),
    ({"also_trains_on": "simulated"}, {}, "simulated, which is not a file"),
    ({"also_trains_on": "site.yaml"}, {}, "is this file itself"),
    (ADDED, {"also_trains_on": "../site.yaml"}, "which has 'also_trains_on', too"),
    (ADDED, {"task": "depth"}, "whose task is 'depth'; name another, or write 'task: depth' here, too"),
    ({"task": "depth", **ADDED}, {"task": "segmentation"}, "is 'segmentation'; name a site of 'depth'"),
    (ADDED, {"split": {"test": ["manual_syn"]}}, "names no video under 'train'"),
    (ADDED, {"classes": "foreground"}, "cannot be read as 'parts'; write 'classes: foreground' here"),
    (ADDED, {"split": {"train": ["manual"]}}, "unknown video in split 'train' 'manual'"),
    (ADDED, {"root": "absent"}, "'root' is "),
])  # fmt: skip
def test_a_site_that_cannot_be_added_is_refused_with_one_sentence(make_site, other, own, others, sentence):
    other(**others)
    assert sentence in refused(make_site(**own))


NUMBERS = {"train": 1, "validation": 2, "test": 3}


@pytest.mark.parametrize("split", NUMBERS)
def test_frames_of_a_split_of_its_own_cannot_be_added(make_site, tmp_path, split):
    """A second file may describe more of the same data set, and no frame may be trained on and tested on."""
    video, own = f"instrument_dataset_{NUMBERS[split]}", {s: [f"instrument_dataset_{n}"] for s, n in NUMBERS.items()}
    (tmp_path / "simulated").mkdir()
    shared = {"dataset": "endovis2017", "split": {"train": [video]}}
    write_yaml(tmp_path / "simulated/site.yaml", {**shared, "root": ".."})
    path = make_site(**ADDED)
    for root in ("../data", ".."):  # both find the videos
        write_yaml(tmp_path / "simulated/site.yaml", {**shared, "root": root})
        assert f"{video}, a part of this site's own split {split!r}" in refused(path)
    write_yaml(tmp_path / "simulated/site.yaml", {**shared, "root": "../data", "split": {"train": [{video: [0, 2]}]}})
    site = load_site(make_site(split={**own, split: [{video: [2, 4]}]}, **ADDED))
    assert len(samples(site, split)) == 2 + 2 * (split == "train")
