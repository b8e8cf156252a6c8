"""Every bad file is found before the first round and named with its site."""

import cv2
import numpy as np
import pytest

from shared_components.commands import check_data
from shared_components.data.check import check_site, readable_samples
from shared_components.data.samples import Sample, SampleSpec, samples
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import load_site
from shared_components.scenes.site import write_site
from tests.data.conftest import H, W, run_command, write


@pytest.fixture
def one_in_ten(make_site) -> tuple[Site, Sample]:
    """Return a site of ten frames with a quarantine for a single frame, and a frame without an image."""
    site = load_site(make_site(frames=10, quarantine=0.1))
    bad = samples(site, "train")[1]
    bad.images[-1].unlink()
    return site, bad


def test_all_bad_files_of_a_frame_are_listed_and_a_quick_check_only_finds_missing_files(make_site):
    site = load_site(make_site())
    first, frame = samples(site, "train")[:2]
    frame.images[-1].unlink()
    for mask in frame.targets["label"]:
        write(mask, np.full((H, W), 99, dtype=np.uint8))
    assert [problem.file for problem in check_site(site)] == [*frame.images, *frame.targets["label"]]
    write(first.targets["label"][0], np.full((H, W), 99, dtype=np.uint8))
    (problem,) = check_site(site, full=False)
    assert problem.file == frame.images[-1]


@pytest.mark.parametrize("split", [{}, {"train": []}, {"test": ["instrument_dataset_1"]}])
def test_a_site_without_training_data_is_refused_and_reported(split, make_site, capsys):
    site = load_site(make_site(split=split))
    (problem,) = check_site(site)
    sentence = f"site hospital-a: {site.path}: split 'train' has no frames; list its videos under 'split'"
    with pytest.raises(SiteError) as error:
        samples(site, "train")
    assert str(error.value) == str(problem) == sentence
    assert run_command(check_data, site.path) == 1 and sentence in capsys.readouterr().out


def test_empty_splits_and_removed_videos_are_reported(make_site, tmp_path):
    split = {"train": ["instrument_dataset_1"]}
    (problem,) = check_site(load_site(make_site(split=split | {"validation": []})))
    assert (problem.split, problem.what) == ("validation", "split 'validation' has no frames")
    site = load_site(make_site(split=split))
    assert check_site(site) == []
    assert [problem.split for problem in check_site(site, required=("train", "validation"))] == ["validation"]
    (tmp_path / "data/instrument_dataset_1").rename(tmp_path / "elsewhere")
    (problem,) = check_site(site)
    assert "instrument_dataset_1" in str(problem)


def test_folders_without_a_site_yaml_and_unknown_tasks_are_reported(make_site, tmp_path, capsys):
    assert run_command(check_data, tmp_path) == 1 and "no such file" in capsys.readouterr().out
    path = make_site(task="dephts")
    assert run_command(check_data, path) == 1
    assert f"{path}: task 'dephts' does not exist; use one of classification, depth, " in capsys.readouterr().out
    for name in ("a", "b", ".hidden"):
        (tmp_path / "sites" / name).mkdir(parents=True)
    path.rename(tmp_path / "sites" / "a" / "site.yaml")
    run_command(check_data, tmp_path / "sites")
    assert f"left out: b in {tmp_path / 'sites'}, without a site.yaml" in capsys.readouterr().out


def test_bad_frames_within_the_quarantine_are_set_aside_and_more_are_refused(one_in_ten, capsys):
    site, bad = one_in_ten
    problems = check_site(site)
    assert len(problems) == 1 and problems[0].quarantined
    assert run_command(check_data, site.path) == 0
    assert "set aside by the site's quarantine" in capsys.readouterr().out
    readable, aside = readable_samples(site, "train")
    assert (len(readable), aside) == (9, [bad])
    samples(site, "train")[5].images[-1].write_bytes(b"")
    assert readable_samples(site, "train", problems=problems) == (readable, aside)
    samples(site, "train")[0].images[-1].unlink()
    with pytest.raises(SiteError, match=r"site hospital-a: .*frame000\.png: file is missing.*3 of 10 frames"):
        readable_samples(site, "train")


DEPTH = SampleSpec(targets=("depth",))
CHANGES = {
    "in metres": lambda number, values: values / 1000,
    "saturated": lambda number, values: np.full_like(values, 65535),
    "only the second frame": lambda number, values: values * number,
    "holes": lambda number, values: values * (np.arange(len(values)) % 2)[:, None],
    "nothing": lambda number, values: values * 0,
}


@pytest.fixture
def changed(tmp_path):
    """Return a function that changes every depth file of a rendered site and opens the site."""
    options = {"videos": {"train": 1}, "frames_per_video": 2, "height": 64, "width": 64}
    path = write_site(tmp_path / "site", look="rose", seed=1, layout="scared", task="depth", **options)
    depths = {file: cv2.imread(str(file), -1) for file in (path.parent / "scared").rglob("*.png")}
    depths = {file: depth for file, depth in depths.items() if depth.dtype == np.uint16}
    assert len(depths) == 2

    def change(name):
        for number, (file, depth) in enumerate(depths.items()):
            cv2.imwrite(str(file), CHANGES[name](number, depth).astype(np.uint16))
        return load_site(path)

    return change


def test_holes_are_used_and_another_unit_or_no_known_depth_is_refused(changed):
    for name in ("holes", "only the second frame"):
        site = changed(name)
        assert check_site(site, DEPTH) == [] and len(readable_samples(site, "train", DEPTH)[0]) == 2
    for name, median in (("in metres", r"0\.0"), ("saturated", "256")):
        sentence = f"has a median depth of {median}.* mm, not 1 to 255"
        with pytest.raises(SiteError, match=sentence):
            readable_samples(changed(name), "train", DEPTH)
    site = changed("nothing")
    broken = samples(site, "train", DEPTH)[0].images[0]
    (problem,) = check_site(site, DEPTH)
    assert problem.sample is None and not problem.quarantined
    assert "has no known depth, and neither have the others of split 'train', 2 in all; export it in" in str(problem)
    broken.write_bytes(b"broken")
    problems = check_site(site, DEPTH)
    assert [other.file.name for other in problems] == [problem.file.name, broken.name]
    for known in (None, problems):
        with pytest.raises(SiteError, match="has no known depth"):
            readable_samples(site, "train", DEPTH, problems=known)
