"""The test result in a sentence, and its intervals over videos, against values worked by hand."""

import csv
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from shared_components.reporting.evaluation_summary import evaluation_of
from shared_components.reporting.records import RecordError, Run, load_evaluations
from shared_components.reporting.uncertainty import RESAMPLES, Spread, measured, of_mean, of_site
from tests.reporting.conftest import METRICS, SEGMENTATION

HALF = {"v1": 0.2, "v2": 0.4, "v3": 0.6, "v4": 0.8}  # by video


def record(by_video, *, frames=2):
    """Make an evaluation, in whose frames two classes score the video's value, less and plus a tenth."""
    rows = [
        {"video": video, "frame": str(number), "class": name, "dice": f"{value + off:.6g}"}
        for video, value in by_video.items()
        for number in range(frames)
        for name, off in (("shaft", 0.1), ("wrist", -0.1))
    ]
    return {"dice": {"mean": sum(by_video.values()) / len(by_video)}, "rows": rows}


def run_of(*models, card=SEGMENTATION):
    info = {"cards": dict.fromkeys(models[-1], card.to_json()), "rounds": 1}
    info["metrics"] = {card.kind: [metric.to_json() for metric in METRICS[card.kind]]}
    beside = dict(zip(("local", "federated"), models, strict=False)) if len(models) > 1 else {}
    sites = tuple(models[-1])
    return Run(Path("nowhere"), info, sites, {site: {} for site in sites}, {}, {}, models[-1], beside)


def test_a_score_is_the_mean_of_outputs_over_the_frames_that_have_them():
    lacking = record(HALF)
    del lacking["rows"][1]  # a wrist of v1, 0.1, so that the wrists' mean is (0.1 + 2 * 1.5) / 7
    lacking["dice"]["mean"] = (0.6 + 3.1 / 7) / 2
    found = measured(lacking, "dice")
    assert found and found.scores(np.arange(4)) == pytest.approx(lacking["dice"]["mean"])
    assert found.scores(np.array([[0, 0, 0, 0], [3, 3, 3, 3]])) == pytest.approx([0.2, 0.8])
    assert measured({**lacking, "dice": {"mean": 0.9}}, "dice") is None  # a score that is no mean of the rows
    assert measured(lacking, "iou") is None and measured({"dice": {"mean": 0.5}}, "dice") is None


def test_the_interval_is_of_whole_videos_drawn_with_replacement():
    """Four videos have 256 draws, few enough to be listed."""
    means = np.sort([np.mean(draw) for draw in np.array(np.meshgrid(*[list(HALF.values())] * 4)).reshape(4, -1).T])
    exact = np.quantile(means, [0.025, 0.975])
    for frames in (1, 50):  # more frames of the same scenes say no more
        spread = of_site(measured(record(HALF, frames=frames), "dice"), 0)
        assert spread.drawn and (spread.low, spread.high) == pytest.approx(exact, abs=0.051)
    assert RESAMPLES > 1000


def test_a_difference_is_of_the_same_draws_so_that_what_all_videos_share_is_certain():
    better = measured(record({video: value + 0.1 for video, value in HALF.items()}), "dice")
    plain = measured(record(HALF), "dice")
    difference = of_mean([better, better], [plain, plain])
    assert (difference.low, difference.high) == pytest.approx((0.1, 0.1))
    assert not of_mean([better], [measured(record({"other": 0.5, "v2": 0.4, "v3": 0.6}), "dice")]).known


def test_two_videos_have_a_range_and_one_has_nothing():
    two, one = (measured(record(dict(list(HALF.items())[:n])), "dice") for n in (2, 1))
    spread = of_site(two, 0)
    assert not spread.drawn and (spread.low, spread.high) == pytest.approx((0.2, 0.4))
    assert str(of_site(one, 0)) == str(of_mean([two])) == str(of_site(None, 0)) and not Spread().known  # NaN


def test_the_sentence_has_every_model_the_worst_site_and_every_site():
    plain, better = record(HALF), record({video: value + 0.1 for video, value in HALF.items()})
    run = run_of({"a": plain, "b": plain, "c": plain}, {"a": better, "b": plain})
    evaluation = evaluation_of(run, run.groups[0])
    assert evaluation is not None and evaluation.sites == ["a", "b"]
    said, note, panel = evaluation.sentence(), evaluation.note(), evaluation.panel()
    assert said.startswith("Mean Dice over 2 sites on the test frames: local 0.500 (") and ", federated 0.550 (" in said
    assert "Worst site: local 0.500 (a), federated 0.500 (b). By site, federated: a 0.600 (" in said
    assert "federated minus local: +0.050 (+0.050 to +0.050)." in evaluation.differences()
    assert "each site's 4 test videos" in note and "not confidence intervals over hospitals" in note
    assert [name for _, name in panel.legend] == ["local", "federated"]
    assert "a, federated: 0.6000, " in panel.charts[0]
    assert all(model.spreads is model.spreads for model in evaluation.models)  # one draw for sentence and chart
    mixed = record({"v1": 0.3, "v2": 0.3, "v3": 0.7, "v4": 0.7})
    similar = evaluation_of(run_of({"a": plain}, {"a": mixed}), run_of({"a": mixed}).groups[0])
    assert similar and "no clear difference because the interval includes 0" in similar.differences()


def test_rows_are_read_beside_the_metrics_and_a_table_without_videos_is_named(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "metrics.json").write_text(json.dumps({"dice": {"mean": 0.5}}))
    write = partial((tmp_path / "a" / "metrics.csv").write_text, newline="")
    write("video,frame,class,dice\nv1,0,shaft,0.5\n")
    assert load_evaluations(tmp_path)["a"]["rows"] == list(csv.DictReader(["video,frame,class,dice", "v1,0,shaft,0.5"]))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "metrics.json").write_text(json.dumps({"site": "a", "dice": {"mean": 0.1}}))
    with pytest.raises(RecordError, match=r"b/metrics\.json: another folder also has an evaluation of a"):
        load_evaluations(tmp_path)
    (tmp_path / "b" / "metrics.json").unlink()
    write("frame,dice\n0,0.5\n")
    with pytest.raises(RecordError, match=r"metrics\.csv: is not an evaluation's table"):
        load_evaluations(tmp_path)


def test_a_note_speaks_of_brackets_only_if_there_are_some():
    for by_video, has in (({"v1": 0.2}, False), ({"v1": 0.2, "v2": 0.4}, True)):
        run = run_of({"a": record(by_video), "b": record(by_video)})
        found = evaluation_of(run, run.groups[0])
        assert found is not None
        assert (" to 0." in found.sentence()) == ("brackets" in found.note()) == has
