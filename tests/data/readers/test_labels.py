"""Readers of labels without pixels: triplets, phases, tools, actions and grades."""

import json
import os
import shutil

import numpy as np
import pytest

from shared_components.commands import check_data
from shared_components.data.check import check_site, readable_samples
from shared_components.data.files.classes import LABELS
from shared_components.data.files.images import DataError
from shared_components.data.readers import find_reader, reader_names
from shared_components.data.readers.gynsurg import fold_cases
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.data.targets import FORMS
from tests.data.conftest import WRITERS, assert_frame, run_command
from tests.data.label_layouts import LABEL_WRITERS, lines, site_of, write_cholec80, write_video

VIDEO = SampleSpec(("grade",), frames=2, targets_of="video")


def test_every_reader_has_a_copy_of_its_layout_and_every_target_a_form():
    assert {*WRITERS, *LABEL_WRITERS} == {name for name in reader_names() if find_reader(name).TARGETS}
    for dataset in reader_names():
        assert set(find_reader(dataset).TARGETS) <= set(FORMS)
        assert set(find_reader(dataset).LABELS.values()) <= set(LABELS)


@pytest.mark.parametrize(("dataset", "target", "expected"), [
    ("cholect45", "triplets", lambda i: np.eye(100)[90 + i]), ("cholect50", "triplets", lambda i: np.eye(100)[90 + i]),
    ("cholect45", "anatomy", lambda i: np.eye(15)[2]), ("cholect50", "verbs", lambda i: np.eye(10)[i]),
    ("cholect45", "phase", lambda i: i), ("cholect50", "phase", lambda i: i), ("cholec80", "phase", lambda i: i),
    ("cholec80", "tools", lambda i: np.eye(7)[i]), ("appendix300", "grade", lambda i: 0),
    ("gynsurg", "action", lambda i: 0),
])  # fmt: skip
def test_every_frame_has_its_labels(dataset, target, expected, tmp_path):
    site, spec = site_of(tmp_path, dataset), SampleSpec((target,))
    assert check_site(site, spec) == []
    listed = samples(site, "train", spec)
    assert len(listed) == 4
    for index, sample in enumerate(listed):
        item = read_sample(sample)
        np.testing.assert_array_equal(item.targets[target], expected(index))
        assert item.targets[target].ndim == {"vector": 1, "scalar": 0}[FORMS[target]]
        assert (item.video, item.number) == (sample.video, sample.index)
        if dataset != "gynsurg":
            assert_frame(item.images[0], index, sample.images[0])


@pytest.mark.parametrize(("dataset", "task", "classes", "expected"), [
    ("cholect45", "triplets", None, "triplets"), ("cholect45", "phases", None, "cholecystectomy_phases"),
    ("cholec80", "", None, "cholecystectomy_phases"), ("appendix300", "classification", None, "appendicitis_grades"),
    ("gynsurg", "classification", "gynsurg_smoke", "gynsurg_smoke"),
])  # fmt: skip
def test_a_site_has_the_labels_of_its_task_or_those_it_names(dataset, task, classes, expected, tmp_path):
    assert site_of(tmp_path, dataset, task=task, classes=classes).classes == LABELS[expected]


def test_the_release_of_cholect45_without_phases_gives_the_rest_and_says_who_has_them(tmp_path):
    site = site_of(tmp_path, "cholect45")
    shutil.rmtree(tmp_path / "data/phase")
    assert check_site(site, SampleSpec(("triplets", "anatomy"))) == []
    assert run_command(check_data, site.path) == 0
    problem = next(p for p in check_site(site, SampleSpec(("phase",))) if p.split == "train")
    assert problem.file == tmp_path / "data/phase/VID01.txt"
    assert "CholecT45 is published without phases; take those of Cholec80 ('dataset: cholec80') or" in str(problem)
    with pytest.raises(SiteError, match="published without phases"):
        read_sample(samples(site, "train", SampleSpec(("phase",)))[0])


@pytest.mark.parametrize("dataset", ["cholect45", "cholect50", "cholec80"])
def test_a_missing_image_of_a_labelled_frame_is_named(dataset, tmp_path):
    site = site_of(tmp_path, dataset)
    spec = SampleSpec(find_reader(dataset).TARGETS[:1])
    missing = samples(site, "train", spec)[1].images[0]
    missing.unlink()
    (problem,) = check_site(site, spec)
    assert problem.file == missing and "file is missing" in problem.what


def test_rows_after_a_videos_end_are_named_and_a_single_one_is_left_out(tmp_path):
    site, spec = site_of(tmp_path, "cholec80"), SampleSpec(("phase",))
    images = sorted((tmp_path / "data/frames/video01").iterdir())
    images[-1].unlink()
    assert (check_site(site, spec), len(samples(site, "train", spec))) == ([], 3)
    images[-2].unlink()
    problems = check_site(site, spec)
    assert [problem.file for problem in problems] == images[-2:]
    sentence = "annotations of this frame; put it back, or cut the annotations where the video ends"
    assert str(problems[0]).endswith(sentence)


@pytest.mark.parametrize(("dataset", "file", "old", "new", "what"), [
    ("cholect45", "triplet/VID01.txt", ",0,0,0,0,0,0\n", "\n", "has 94 labels in line 1, not the 100 triplets"),
    ("cholect45", "triplet/VID01.txt", "0,0,0", "0,x,0", "has no whole numbers in line 1"),
    ("cholect45", "triplet/VID01.txt", "\n3,", "\n0,", "has frame 0 twice"),
    ("cholect50", "labels/VID01.json", '"99": ""', '"100": "", "99": ""', "has 101 triplets, not the 100"),
    ("cholect50", "labels/VID01.json", "annotations", "labels", "is no label file of CholecT50"),
])  # fmt: skip
def test_a_label_file_of_another_version_is_one_sentence(dataset, file, old, new, what, tmp_path):
    site = site_of(tmp_path, dataset)
    path = tmp_path / "data" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 4 if old.endswith("\n") else 1))
    os.utime(path, ns=(1, 1))
    with pytest.raises(SiteError, match=what):
        samples(site, "train", SampleSpec(("triplets",)))


def test_a_wrong_value_is_named_with_its_frame_and_a_phase_may_be_its_number(tmp_path):
    site = site_of(tmp_path, "cholect45")
    table = tmp_path / "data/phase/VID01.txt"
    table.write_text(table.read_text().replace("3,0,1,0", "3,1,1,0"))
    (problem,) = check_site(site, SampleSpec(("phase",)))
    assert problem.what == r"names 2 classes at 000003 ([0, 1]) instead of one from 0 to 6"
    (tmp_path / "data/phase/VID01.txt").write_text("0,0,0,0,0,0,0,1\n")
    assert ["has no row of frame" in problem.what for problem in check_site(site, SampleSpec(("phase",)))] == [True] * 3
    site = site_of(tmp_path, "cholect45")
    lines(tmp_path / "data/phase/VID01.txt", [(3 * i, 6 - i) for i in range(4)])
    read = [int(read_sample(sample).targets["phase"]) for sample in samples(site, "train", SampleSpec(("phase",)))]
    assert read == [6, 5, 4, 3]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "null", "[1]", "1.7", "true"])
def test_an_id_that_is_no_whole_number_is_refused(value, tmp_path):
    site, file = site_of(tmp_path, "cholect50"), tmp_path / "data/labels/VID01.json"
    content = json.loads(file.read_text())
    next(iter(content["annotations"].values()))[0][0] = "VALUE"
    file.write_text(json.dumps(content).replace('"VALUE"', value))
    os.utime(file, ns=(1, 1))
    problems = check_site(site, SampleSpec(("triplets",)))
    assert "without 15 numbers or whole ids" in str(problems)


def test_a_quote_that_nothing_closes_is_a_damaged_table(tmp_path):
    site, file = site_of(tmp_path, "cholec80"), tmp_path / "data/phase_annotations/video01-phase.txt"
    file.write_text(file.read_text() + '"' + "x" * 200_000)
    os.utime(file, ns=(1, 1))
    problems = check_site(site, SampleSpec(("phase",)))
    assert any("is no table (field larger than field limit" in str(problem) for problem in problems)


def test_published_videos_of_cholec80_and_appendix300_are_read_at_the_rates_of_their_labels(tmp_path):
    write_cholec80(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "frames/video01")
    write_video(tmp_path / "videos/video01.mp4", 50, 25)
    reader = find_reader("cholec80")
    listing = reader.frames(tmp_path, "video01")
    assert [(number, image.name) for number, image, _ in listing] == [(0, "000000"), (25, "000025")]
    np.testing.assert_allclose(reader.read_image(listing[1][1]), 65, atol=3)
    write_video(tmp_path / "appendix/Full_Videos/Center1/Center1_001/Center1_001.mp4", 60, 30)
    reader = find_reader("appendix300")
    assert reader.videos(tmp_path / "appendix") == ["Center1_001"]
    images = reader.images(tmp_path / "appendix", "Center1_001")
    assert {n: path.name for n, path in images.items()} == {0: "000000", 1: "000015", 2: "000030", 3: "000045"}
    np.testing.assert_allclose(reader.read_image(images[2]), 70, atol=3)


def test_a_video_without_a_grade_is_named_and_set_aside_as_the_quarantine_allows(tmp_path):
    strict = site_of(tmp_path, "appendix300", videos=8)
    table = tmp_path / "data/grades.csv"
    table.write_text(table.read_text().replace("002,1\n", "").replace("003,2\n", "003,\n"))
    assert [problem.what for problem in check_site(strict, VIDEO)] == ["has no grade of 002", "gives 003 no grade"]
    with pytest.raises(SiteError, match=r"grades\.csv: has no grade of 002; give it one.*2 of 6 frames"):
        readable_samples(strict, "train", VIDEO)
    table.write_text(table.read_text().replace("003,\n", "003,2\n"))
    strict.path.write_text(strict.path.read_text() + "quarantine: 0.2\n")
    good, bad = readable_samples(load_site(strict.path), "train", VIDEO)
    assert ([sample.video for sample in bad], len(good)) == (["002"], 5)


def test_gynsurg_folds_part_patients(tmp_path):
    names = LABEL_WRITERS["gynsurg"](tmp_path, 4, 1)
    folds = fold_cases(tmp_path, "action")
    assert {fold: {part: tuple(videos) for part, videos in sets.items()} for fold, sets in folds.items()} == {
        "1": {"test": (names[0], names[2]), "train": (names[1], names[3])},
        "2": {"train": (names[0], names[2]), "test": (names[1], names[3])},
    }
    table = tmp_path / "GynSurg_Action_3sec/GynSurg_action_dataset/fold_1.csv"
    table.write_text(table.read_text().replace("case1", "case0"))
    with pytest.raises(DataError, match="has the case case0 in two sets of fold 1"):
        fold_cases(tmp_path, "action")


def test_gynsurg_labels_are_read_again_where_corrected_may_be_names_and_are_of_one_kind(tmp_path):
    site = site_of(tmp_path, "gynsurg")
    sample = samples(site, "train", SampleSpec(("action",)))[0]
    before = int(read_sample(sample).targets["action"])
    for table in (tmp_path / "data").rglob("*.csv"):
        head, *rows = [line.split(",") for line in table.read_text().splitlines()]
        for row in rows:
            row[head.index("labels")] = "1" if row[head.index("labels")] == "0" else "0"
        table.write_text("".join(",".join(row) + "\n" for row in [head, *rows]))
        os.utime(table, ns=(1, 1))
    assert int(read_sample(sample).targets["action"]) != before
    site = site_of(tmp_path / "named", "gynsurg")
    for table in (tmp_path / "named/data/GynSurg_Action_3sec/GynSurg_action_dataset").glob("*.csv"):
        table.write_text(table.read_text().replace("clip_1.mp4,0", "clip_1.mp4,Suction-Irrigation"))
    (sample,) = samples(site, "train", SampleSpec(("action",), frames=2, targets_of="video"))
    assert int(read_sample(sample).targets["action"]) == 3
    whats = [problem.what for problem in check_site(site, SampleSpec(("smoke",), frames=2, targets_of="video"))]
    assert "has labels of action, and 'smoke' is asked for of clip_1" in whats


def test_real_cholect50_has_46_triplets_and_both_layouts_agree(real_data):
    root = real_data / "cholect50_challenge_val"
    if not root.is_dir():
        pytest.skip("there is no cholect50_challenge_val")
    targets = {}
    for dataset in ("cholect45", "cholect50"):
        reader = find_reader(dataset)
        assert len(reader.videos(root)) == 5
        read = {name: [] for name in ("triplets", "instruments", "verbs", "anatomy", "phase")}
        for video in reader.videos(root):
            for _, image, files in reader.frames(root, video):
                assert image.is_file()
                for name, rows in read.items():
                    rows.append(reader.read_target(name, files[name]))
        targets[dataset] = {name: np.stack(rows) for name, rows in read.items()}
    assert targets["cholect50"]["triplets"].shape == (1128, 100)
    assert int(targets["cholect50"]["triplets"].any(0).sum()) == 46
    for name, values in targets["cholect45"].items():
        np.testing.assert_array_equal(values, targets["cholect50"][name])
    names = json.loads((root / "labels/VID68.json").read_text())["categories"]["triplet"]
    assert [names[str(n)].replace(",", "/") for n in range(100)] == list(LABELS["triplets"])
