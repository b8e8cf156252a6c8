"""Rows that train on some of the videos of their sites: a few, or without the test videos of a later task."""

import shutil

import cv2
import numpy as np
import pytest
import yaml

from shared_components.data.site import RENDERED
from shared_components.data.site_file import load_site
from shared_components.data.splits import choose_few_videos
from shared_components.experiments.comparison.plan import DataChanges, Run, Variant
from shared_components.experiments.comparison.sites import changed_sites
from shared_components.federation.messages import FederationError
from shared_components.scenes.site import write_site

BUNDLE = "fl_endovit_phases"
TRAINING = [f"VID{number:02d}" for number in range(1, 9)]


@pytest.fixture(scope="module")
def cholec80(tmp_path_factory):
    """The site.yaml of ten operations with one frame each; eight operations are for training."""
    return write_site(
        tmp_path_factory.mktemp("sites") / "cholec80", look="rose", seed=1, layout="cholect45", task="phases",
        videos={"train": 8, "validation": 1, "test": 1}, frames_per_video=1, height=64, width=64,
    )  # fmt: skip


def trained_on(site, folder, *, seed=1, name="cholec80", **row):
    run = Run(Variant("A row", "fedavg", bundle=BUNDLE, data=DataChanges(**row)), seed, 1, {}, {name: str(site)})
    (path,) = changed_sites(run, folder).values()
    changed = load_site(path)
    assert all(changed.split[split] == load_site(site).split[split] for split in ("validation", "test"))
    return [part.video for part in changed.split["train"]]


def test_a_row_of_few_videos_trains_on_those_of_its_seed(cholec80, tmp_path):
    for seed in (1, 4):
        assert trained_on(cholec80, tmp_path / str(seed), seed=seed, videos=2) == choose_few_videos(TRAINING, 2, seed)
    with pytest.raises(FederationError, match=r"site\.yaml: trains on 8 videos, and 9 are needed"):
        trained_on(cholec80, tmp_path / "more", videos=9)


def test_ids_that_are_colours_in_lists_are_read_here_too(tmp_path):
    for video in "abcd":
        for kind in ("images", "masks"):
            (tmp_path / video / kind).mkdir(parents=True)
            cv2.imwrite(str(tmp_path / video / kind / "0.png"), np.full((8, 8, 3), (0, 128, 255), np.uint8))
    lines = (
        "dataset: frames", "root: .", "images: '{video}/images'", "masks: '{video}/masks'",
        "ids: {[255, 128, 0]: grasper}", "split: {train: [a, b], validation: [c], test: [d]}",
    )  # fmt: skip
    (tmp_path / "site.yaml").write_text("\n".join(lines))
    run = Run(Variant("A row", "fedavg", data=DataChanges(videos=1)), 1, 1, {}, {"ours": str(tmp_path / "site.yaml")})
    (path,) = changed_sites(run, tmp_path / "run").values()
    assert load_site(path).classes == ("background", "grasper") and len(load_site(path).split["train"]) == 1


def test_a_public_sites_few_videos_are_the_papers_and_ranges_of_one_stay(cholec80, tmp_path):
    public = shutil.copytree(cholec80.parent, tmp_path / "public") / "site.yaml"
    (public.parent / RENDERED).unlink()
    for number in (25, 32):
        for file in sorted((public.parent / "cholect45").rglob("*VID08*")):
            copy = file.with_name(file.name.replace("VID08", f"VID{number}"))
            shutil.copytree(file, copy) if file.is_dir() else shutil.copy(file, copy)
    config = yaml.safe_load(public.read_text())
    config["split"]["train"] = [*TRAINING, {"VID25": [0, 1]}, "VID32"]
    public.write_text(yaml.safe_dump(config))
    assert trained_on(public, tmp_path / "run", videos=2) == ["VID01", "VID25"]  # Table 9: 25, 1
    written = yaml.safe_load((tmp_path / "run/sites/cholec80/site.yaml").read_text())
    assert {"VID25": [0, 1]} in written["split"]["train"]
    assert trained_on(public, tmp_path / "before", leaves_out="triplets") == [  # 1, 4 and others of fold 5
        "VID02", "VID03", "VID05", "VID06", "VID07", "VID08", "VID25", "VID32"
    ]  # fmt: skip


def test_rendered_cholec80_leaves_out_as_large_a_share_as_the_tasks_videos_and_other_sites_nothing(cholec80, tmp_path):
    """40 of 80 videos are half of eight; 4 of 80 round to none of eight."""
    assert trained_on(cholec80, tmp_path / "a", leaves_out="phases") == TRAINING[:4]
    assert trained_on(cholec80, tmp_path / "b", leaves_out="segmentation") == TRAINING
    assert trained_on(cholec80, tmp_path / "c", name="heico", leaves_out="phases") == TRAINING
    rows = [{}, {"videos": 1}, {"videos": 2}, {"leaves_out": "phases"}]
    runs = [
        Run(Variant("A", "fedavg", bundle=BUNDLE, data=DataChanges(**row)), 1, 1, {}, {"a": str(cholec80)})
        for row in rows
    ]
    assert len({run.name for run in runs}) == 4
    assert [run.variant.data.changes_sites for run in runs] == [False] + [True] * 3
    assert all(Run.from_json(run.to_json()) == run for run in runs)
