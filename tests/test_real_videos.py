"""Five videos as five sites, leaving one out: on generated folders of the layout of CholecT50's validation set."""

import json

import numpy as np
import pytest

from evidence import real_videos
from evidence.real_videos import Result, blind, job_of, results_of, scored, stretches, table, write_sites
from shared_components.core.card import Metric
from shared_components.core.task import make_task
from shared_components.data.files.triplets import NAMES
from shared_components.data.samples import SampleSpec, samples
from shared_components.data.site_file import load_site
from tests.data.conftest import frame_image, write

FRAMES = 50


def number(video, frame):
    """Return a frame's number: seconds that are not contiguous, from another one on in every video."""
    return 7 * frame + video


@pytest.fixture
def data(tmp_path):
    """Write three videos of JPEG frames, two triplets and two phases, with a duplicate that has no label."""
    root = tmp_path / "data"
    (root / "labels").mkdir(parents=True)
    for video in (68, 70, 73):
        annotations = {}
        for frame in range(FRAMES):
            write(root / f"videos/VID{video}/{number(video, frame):06d}.jpg", frame_image(frame))
            late = int(frame >= 26)
            row = [7 + 20 * late, late, 1, 0.1, 0.1, 0.2, 0.2, late, 0, 1, -1, -1, -1, -1, 1 + late]
            annotations[str(number(video, frame))] = [row]
        write(root / f"videos/VID{video}/{number(video, 0):06d} (1).png", frame_image(0))
        categories = {"triplet": {str(n): name for n, name in enumerate(NAMES)}}
        content = {"annotations": annotations, "categories": categories}
        (root / f"labels/VID{video}.json").write_text(json.dumps(content))
    return root


def test_each_video_is_a_site_of_its_own_and_is_left_out_whole(tmp_path, data):
    files = write_sites(data, tmp_path / "sites", "phases")
    assert list(files["train"]) == list(files["test"]) == ["VID68", "VID70", "VID73"]
    spec = SampleSpec(targets=("phase",))
    trained, tested = (load_site(files[kind]["VID70"]) for kind in ("train", "test"))
    assert trained.root == tested.root == data
    train, validation = ([s.index for s in samples(trained, split, spec)] for split in ("train", "validation"))
    every = [number(70, frame) for frame in range(FRAMES)]
    assert validation == [every[n] for last in (9, 19, 29, 39, 49) for n in (last - 1, last)]
    assert sorted(train + validation) == every == [s.index for s in samples(tested, "test", spec)]
    assert {s.video for s in samples(trained, "train", spec)} == {"VID70"}


@pytest.mark.parametrize("count", [25, 120, 441])
def test_every_frame_is_of_one_stretch_a_fifth_validates_and_few_are_refused(count):
    cut = stretches(count)
    listed = {split: [n for first, stop in parts for n in range(first, stop)] for split, parts in cut.items()}
    assert sorted(listed["train"] + listed["validation"]) == list(range(count))
    assert abs(len(listed["validation"]) - count / 5) < real_videos.STRETCHES
    with pytest.raises(ValueError, match="24 labelled frames, and 25 are needed"):
        stretches(24)


def test_one_score_for_all_frames_has_each_triplets_share_as_its_average_precision():
    """Shares of 1/4 and 3/4 of four frames: a mean of 0.5; the third class does not occur and does not count."""
    task = make_task("triplets", {}, classes=("a/b/c", "a/b/d", "e/b/c"))
    truth = np.array([[1, 1, 0], [0, 1, 0], [0, 1, 0], [0, 0, 0]], bool)
    constant, random = blind(task, len(truth), truth).values()
    (answers,) = constant
    record = scored(task, answers, truth)
    assert record["map"]["mean"] == pytest.approx(0.5)
    assert record["map_i"]["mean"] == pytest.approx(0.75)  # instrument a is in three frames of four
    drawn = list(random)
    assert len(drawn) == real_videos.DRAWS and not np.array_equal(drawn[0], drawn[1])


def test_the_most_frequent_phase_is_the_trainings_and_not_the_left_out_videos():
    """Phase 1 of the training is 2 of 5 frames: accuracy 0.4, F1 (4/7 + 0) / 2 over the two phases that occur."""
    task = make_task("phases", {}, classes=("a", "b", "c"))
    trained, truth = np.array([1, 1, 1, 0, 2]), np.array([0, 0, 0, 1, 1])
    majority, guesses = blind(task, len(truth), trained).values()
    (answers,) = majority
    record = scored(task, answers, truth)
    assert record["accuracy"]["mean"] == pytest.approx(0.4)
    assert record["macro_f1"]["mean"] == pytest.approx(2 / 7)
    assert record["f1"]["mean"] == pytest.approx(2 * 0.2 * 0.5 / 0.7)  # precision (0.4 + 0) / 2, recall (1 + 0) / 2
    accuracies = [scored(task, answers, truth)["accuracy"]["mean"] for answers in guesses]
    assert np.mean(accuracies) == pytest.approx(0.6 * 0.2 + 0.4 * 0.6, abs=0.06)  # shares times shares: 0.36


def test_chance_is_scored_on_the_left_out_video_and_on_the_others_own_frames(tmp_path, data, monkeypatch):
    """The training has phase 1 most: 26 of 50 frames of the left-out video, and 2 of 5 validated ones elsewhere."""
    monkeypatch.setattr(real_videos, "DRAWS", 1)
    files = write_sites(data, tmp_path / "sites", "phases")
    test, task = load_site(files["test"]["VID68"]), make_task("phases", {}, classes=tuple("abcdefg"))
    sites = {video: load_site(files["train"][video]) for video in ("VID70", "VID73")}
    majority, _ = real_videos.blind_results(task, test, sites)
    assert (majority.video, majority.held_out["accuracy"], majority.own["accuracy"]) == ("VID68", 26 / 50, 2 / 5)


@pytest.mark.parametrize("task", real_videos.USES)
def test_rows_differ_in_the_start_and_in_what_learns_alone(task):
    jobs = {row: job_of(task, row, 3, {"rounds": 2, "batch_size": 4}) for row in real_videos.ROWS}
    assert {(job.method, job.bundle, job.rounds) for job in jobs.values()} == {("fedavg", f"fl_endovit_{task}", 2)}
    opened = {row: job.open_bundle() for row, job in jobs.items()}
    found = {row: (one.training.start, one.network["trained_encoders"]) for row, one in opened.items()}
    assert set(found.values()) == {("random", True), ("rendered", True), ("random", False), ("rendered", False)}
    settings = {(one.training.seed, one.training.iterations, one.training.batch_size) for one in opened.values()}
    assert settings == {(3, 26, 4)}


def test_a_table_has_the_mean_over_seeds_of_each_video_and_their_population_deviation():
    """Videos of 10 (seeds 5 and 15) and 20: 15 ± 5; own frames 40 (30 and 50) and 60: 50."""
    results = [
        Result("a row", video, seed, {"map": there}, {"map": own})
        for video, seed, there, own in (("V1", 1, 0.05, 0.3), ("V1", 2, 0.15, 0.5), ("V2", 1, 0.2, 0.6))
    ]
    title, _, head, _, line = table(Metric("map", "mAP", True, "%", 100.0, 2), results).splitlines()
    assert title == "**mAP, %**" and head == "|  | own videos | left-out video | V1 | V2 |"
    assert line == "| a row | 50.0 | 15.0 ± 5.0 | 10.0 | 20.0 |"


@pytest.mark.slow
def test_a_row_of_both_tasks_is_scored_on_every_video_and_is_not_trained_twice(tmp_path, data, monkeypatch, capsys):
    row = "FL-EndoViT as shipped, frozen"
    monkeypatch.setattr(real_videos, "ROWS", {row: real_videos.ROWS[row]})
    monkeypatch.setattr(real_videos, "DRAWS", 2)
    real_videos.main(["--data", str(data), "--out", str(tmp_path / "out"), "--rounds", "1", "--iterations", "2"])
    text = (tmp_path / "out/tables.md").read_text()
    assert text in capsys.readouterr().out
    assert text.count(f"| {row} |") == sum(len(use.metrics) for use in real_videos.USES.values())
    assert len(list((tmp_path / "out/runs").iterdir())) == 2 * 3
    monkeypatch.setattr(real_videos, "run_together", None)
    _, results = results_of("triplets", data, tmp_path / "out", [1], {"rounds": 1, "iterations": 2})
    assert len(results) == 3 * (1 + 2)
    assert all(0 <= value <= 1 for one in results for scores in (one.held_out, one.own) for value in scores.values())
