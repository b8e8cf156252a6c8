"""Operations: triplets follow tool, motion and tissue; grades show in the tissue; layouts hold the labels exactly."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import yaml

from shared_components.data.files.classes import CLASS_MAPS
from shared_components.data.files.triplets import INSTRUMENTS, NAMES, TARGETS, TRIPLETS, VERBS
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.scenes import toolbox
from shared_components.scenes.layouts import LAYOUTS
from shared_components.scenes.motion import Pose
from shared_components.scenes.operations import GRADES, OPERATIONS, PHASES, triplet_of, under_tip
from shared_components.scenes.scene import render_video
from shared_components.scenes.site import plan_sites, tile, video_seed, write_site

SIZE = {"height": 64, "width": 96}


@cache
def film(operation, look="rose", seed=1, frames=24, grade=0):
    return tuple(render_video(look, seed, frames=frames, rate=1.0, operation=operation, grade=grade, **SIZE))


def site_of(folder, layout, task, videos, frames=9):
    options = {"look": "rose", "seed": 5, "videos": videos, "frames_per_video": frames, **SIZE}
    return write_site(folder / "site", layout=layout, task=task, **options)


def pose(kind, grip=0.1, speed=0.0):
    zero = np.zeros(3)
    return Pose(0, kind, 1.0, zero, zero, zero, (zero, zero), zero, grip, speed)


@pytest.mark.parametrize(("held", "under", "name"), [
    (pose(toolbox.GRASPER), "gallbladder", "grasper/grasp/gallbladder"),
    (pose(toolbox.GRASPER, speed=20.0), "gallbladder", "grasper/retract/gallbladder"),
    (pose(toolbox.GRASPER, grip=0.9), "gallbladder", "grasper/null_verb/null_target"),
    (pose(toolbox.HOOK, grip=0.9, speed=20.0), "cystic_duct", "hook/dissect/cystic_duct"),  # it has no jaws to open
    (pose(toolbox.CLIPS), "cystic_artery", "clipper/clip/cystic_artery"),
    (pose(toolbox.CLIPS), "liver", "clipper/null_verb/null_target"),  # the data set has no such triplet
    (pose(toolbox.SUCTION), "fluid", "irrigator/aspirate/fluid"),
    (pose(toolbox.MARYLAND), "", "bipolar/null_verb/null_target"),
])  # fmt: skip
def test_a_triplet_is_of_the_tool_its_motion_and_what_lies_under_its_tip(held, under, name):
    assert NAMES[triplet_of(held, under)] == name


def test_the_thinnest_thing_that_some_of_a_tip_is_over_counts():
    doing = OPERATIONS["cholecystectomy"]
    duct = 1 + doing.targets.index("cystic_duct")
    assert under_tip(doing, np.array([1] * 8 + [duct] * 2)) == "cystic_duct"
    assert under_tip(doing, np.array([1] * 19 + [duct])) == "liver"
    assert under_tip(doing, np.array([], np.uint8)) == under_tip(doing, np.zeros(9, np.uint8)) == ""


def test_a_cholecystectomy_goes_through_phases_that_differ_in_tools():
    frames = film("cholecystectomy")
    phases = [frame.phase for frame in frames]
    assert phases == sorted(phases) and set(phases) == set(range(7))
    hands = toolbox.TECHNIQUES["cholecystectomy"].hands
    videos = (film("cholecystectomy", seed=seed) for seed in range(4))
    assert len({number for video in videos for frame in video for number in frame.triplets}) > 12
    for frame in frames:
        assert {name.split("_", 1)[1] for name in frame.tools} <= {kind for arm in hands[frame.phase] for kind in arm}
        assert len(frame.triplets) == len(frame.tools)


def test_equal_seeds_give_equal_bits_and_in_every_look_equal_phases():
    rose, amber = film("cholecystectomy"), film("cholecystectomy", "amber")
    again = next(render_video("rose", 1, frames=24, rate=1.0, operation="cholecystectomy", **SIZE))
    assert np.array_equal(rose[0].image, again.image) and rose[0].triplets == again.triplets
    assert [frame.phase for frame in rose] == [frame.phase for frame in amber]
    assert not np.array_equal(rose[0].image, amber[0].image)


def test_a_grade_shows_in_the_tissue_and_moves_no_instrument():
    """Redness of the middle grows with oedema; necrosis is dark, pus and fibrin are pale."""
    by_grade = [film("appendectomy", seed=3, frames=2, grade=grade) for grade in range(len(GRADES))]
    assert all(np.array_equal(by_grade[0][1].parts, frames[1].parts) for frames in by_grade)
    for grade, frames in enumerate(by_grade):
        assert frames[0].grade == grade
        for other in by_grade[:grade]:
            free = frames[0].parts == 0
            assert np.abs(frames[0].image.astype(int) - other[0].image)[free].mean() > 1


def rows(file):
    return np.array([[int(cell) for cell in line.split(",")] for line in file.read_text().splitlines()])


def test_the_layout_of_cholect45_is_written_exactly(tmp_path):
    file = site_of(tmp_path, "cholect45", "triplets", {"train": 1, "test": 1})
    root = file.parent / "cholect45"
    described = yaml.safe_load(file.read_text())
    assert described["task"] == "triplets" and described["split"] == {"train": ["VID01"], "test": ["VID02"]}
    assert [path.name for path in sorted((root / "data" / "VID01").iterdir())] == [f"{n:06d}.png" for n in range(9)]
    frames = render_video("rose", video_seed(5, 1), frames=9, rate=1.0, operation="cholecystectomy", **SIZE)
    of = {name: rows(root / name / "VID01.txt") for name in ("triplet", "instrument", "verb", "target", "phase")}
    assert {name: table.shape for name, table in of.items()} == {
        "triplet": (9, 101), "instrument": (9, 7), "verb": (9, 11), "target": (9, 16), "phase": (9, 8),
    }  # fmt: skip
    for number, frame in enumerate(frames):
        assert all(table[number, 0] == number for table in of.values())
        assert np.flatnonzero(of["triplet"][number, 1:]).tolist() == sorted(set(frame.triplets))
        for part, name in enumerate(("instrument", "verb", "target")):
            parts = {TRIPLETS[triplet][part] for triplet in frame.triplets}
            assert set(np.flatnonzero(of[name][number, 1:]).tolist()) == parts
        assert np.flatnonzero(of["phase"][number, 1:]).tolist() == [frame.phase]
    listed = {name: (root / "dict" / f"{name}.txt").read_text().splitlines() for name in of}
    assert listed["triplet"][17] == "17:grasper,retract,gallbladder" and listed["phase"][6] == f"6:{PHASES[6]}"
    assert [len(lines) for lines in listed.values()] == [100, len(INSTRUMENTS), len(VERBS), len(TARGETS), 7]
    maps = (root / "dict" / "maps.txt").read_text().splitlines()
    assert maps[0] == "# IVT, I, V, T, IV, IT" and maps[23] == "22,1,3,7,13,22"


def test_a_cholecystectomy_is_written_as_cholecseg8k_and_read_in_its_classes(tmp_path):
    """Organs where nothing hides them; the reader knows the published grey values."""
    site = load_site(site_of(tmp_path, "cholecseg8k", "segmentation", {"train": 1}))
    assert site.classes == CLASS_MAPS["cholecseg8k_merged"] and site.split["train"][0].video == "video01"
    whole = replace(site, classes=CLASS_MAPS["cholecseg8k"])
    frames = render_video("rose", video_seed(5, 1), frames=9, rate=1.0, operation="cholecystectomy", **SIZE)
    organs, seen = OPERATIONS["cholecystectomy"].targets, set()
    for number, (one, frame) in enumerate(zip(samples(whole, "train"), frames, strict=True)):
        item = read_sample(one)
        label = item.targets["label"]
        assert item.number == 25 * number and np.array_equal(item.images[0], frame.image)
        names = np.array(CLASS_MAPS["cholecseg8k"])[label]
        assert set(names[frame.parts > 0]) <= {"grasper", "L-hook"}
        for organ, name in (("liver", "liver"), ("gallbladder", "gallbladder"), ("omentum", "fat"), ("fluid", "blood")):
            there = frame.things == 1 + organs.index(organ)
            assert np.array_equal(names == name, there)
            seen |= {name} if there.any() else set()
        hook = [place for place, tool in enumerate(frame.tools, start=1) if "Hook" in tool]
        assert np.array_equal(names == "L-hook", np.isin(frame.instances, hook) & (frame.parts > 0))
    assert {"liver", "gallbladder", "fat"} <= seen


def test_a_graded_site_has_a_grade_for_every_video(tmp_path):
    file = site_of(tmp_path, "appendix300", "classification", {"train": 6}, frames=1)
    lines = (file.parent / "appendix300" / "grades.csv").read_text().splitlines()
    assert lines[0] == "video,grade" and sorted(line.split(",")[1] for line in lines[1:]) == list("012345")
    assert (file.parent / "appendix300" / "videos" / "001" / "000000.jpg").is_file()


def test_layouts_with_labels_are_had_only_where_asked_for(tmp_path):
    (plan,) = plan_sites(tmp_path, sites=1, layouts=["appendix300"])
    assert plan.task == "classification"
    (plan,) = plan_sites(tmp_path, sites=1, layouts=["cholect45"], tasks=["phases"])
    assert plan.layout == "cholect45"
    for layout, task in (("cholect45", "depth"), ("auto", "triplets")):
        with pytest.raises(ValueError, match=f"layout '{layout}' has no labels for {task}"):
            plan_sites(tmp_path, sites=1, layouts=[layout], tasks=[task])


@pytest.mark.parametrize(
    ("task", "layout"), [("triplets", "cholect45"), ("phases", "cholect45"), ("classification", "appendix300")]
)
def test_a_contact_sheet_names_the_labels(task, layout):
    frame = film(LAYOUTS[layout].operation)[8]
    drawn = tile(frame, task, layout)
    assert drawn.shape == frame.image.shape and (drawn < 128).any()
