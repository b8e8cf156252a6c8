"""Nine data sets in their layouts become nine sites, without the videos on which the next task is tested."""

from __future__ import annotations

import pytest
import yaml

from shared_components.commands import site as command
from shared_components.data.check import check_site
from shared_components.data.endo700k import BEFORE, PARTS, left_out, part_of
from shared_components.data.files import DataError
from shared_components.data.samples import SampleSpec, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.scenes.site_sets import IMAGES
from tests.data.conftest import frame_image, run_command, write
from tests.data.test_unlabelled import PARTS as LAYOUTS
from tests.data.test_unlabelled import VIDEOS, encode_numbers, write_boxes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with copies of the nine layouts, Cholec80 with eleven videos."""
    root = tmp_path_factory.mktemp("endo700k")
    for site, dataset in PARTS.items():
        for number, file in enumerate(LAYOUTS.get(dataset, ({},))[0]):
            write(root / site / file, frame_image(number))
            if dataset == "glenda":  # whose last frame of a stretch is not used
                write((root / site / file).with_stem("f_99"), frame_image(number))
        if dataset in VIDEOS and site != "cholec80":
            first = encode_numbers(root / site / VIDEOS[dataset][0], 30)
            first.with_stem(f"{first.stem}2").write_bytes(first.read_bytes())
    write_boxes(root / "esad")
    for number in (1, 12, 13, 40, 41, 80):
        write(root / "cholec80" / f"frames/video{number:02d}/video{number:02d}_000001.png", frame_image(1))
    return root


def written(folder, out, *options):
    assert run_command(command, "endo700k", folder, "--out", out, *options) == 0
    return {path.parent.name: load_site(path) for path in out.glob("*/site.yaml")}


def test_nine_sites_are_written_that_can_be_read_and_keep_their_names(folder, tmp_path, capsys):
    sites = written(folder, tmp_path / "sites", "--before", "segmentation")
    assert list(sites) and set(sites) == set(PARTS) == set(IMAGES) and list(PARTS) == list(IMAGES)
    assert all(check_site(site, SampleSpec(())) == [] for site in sites.values())
    counts = [len(samples(site, split, SampleSpec(()))) for site in sites.values() for split in ("train", "validation")]
    assert min(counts) >= 1  # a federation asks for both
    assert "video12, video17, video27, video52" in capsys.readouterr().out
    with pytest.raises(SiteError, match="is there already; give --out another folder"):
        written(folder, tmp_path / "sites", "--before", "all")


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ("segmentation", [1, 2, 10, 13, 40, 41, 80]),
        ("triplets", [2, 10, 12, 40, 41, 80]),
        ("phases", [1, 2, 10, 12, 13, 40]),
        ("all", [2, 10, 40]),
    ],
)
def test_a_variant_leaves_out_the_test_videos_of_its_task(folder, before, kept):
    split = part_of("cholec80", folder / "cholec80", before=before, validation=1)["split"]
    assert split["train"] + split["validation"] == [f"video{number:02d}" for number in kept]
    assert len(split["validation"]) == 1


def test_videos_of_both_folders_are_left_out_by_their_numbers(tmp_path):
    for number in (1, 2, 12):
        write(tmp_path / f"frames/video{number}/video{number}_000001.png", frame_image(1))
    split = part_of("cholec80", tmp_path, before="triplets", validation=1)["split"]
    assert split == {"train": ["video2"], "validation": ["video12"]}
    encode_numbers(tmp_path / "videos/video09.mp4", 30)
    split = part_of("cholec80", tmp_path, before="phases", validation=1)["split"]
    assert split == {"train": ["video1", "video2", "video09"], "validation": ["video12"]}


def test_all_leaves_out_the_videos_of_every_task():
    assert set(left_out("all")) == set().union(*(left_out(task) for task in BEFORE[:-1]))
    with pytest.raises(ValueError, match="and not 'depth'; choose one of them"):
        left_out("depth")


def test_missing_folders_are_named(folder, tmp_path, capsys):
    only = tmp_path / "only"
    only.mkdir()
    with pytest.raises(SiteError, match="holds none of the folders heico, cholec80"):
        written(only, tmp_path / "a", "--before", "all")
    (only / "glenda").mkdir()
    with pytest.raises(DataError, match="has 0 videos of glenda to train on"):
        written(only, tmp_path / "a", "--before", "all")
    (only / "glenda").rmdir()
    (only / "glenda").symlink_to(folder / "glenda")
    written(only, tmp_path / "a", "--before", "all")
    assert "not there: heico, cholec80" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "a" / "glenda" / "site.yaml").read_text())["root"] == str(folder / "glenda")
