"""Results by hand, pictures, tiny sites and plans of comparisons."""

import argparse
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from shared_components.commands import _compare as compare
from shared_components.commands.compare import configure
from shared_components.core.card import Card
from shared_components.experiments.comparison.pictures import TESTED
from shared_components.experiments.comparison.plan import Run, Variant, at_scale, resolved, scale_of
from shared_components.experiments.comparison.presets import PRESETS
from shared_components.experiments.comparison.results import Comparison, Result
from shared_components.reporting.records import Run as Records
from shared_components.scenes.site import write_site
from tests.reporting.conftest import METRICS

SITES, THREE = ("a", "b"), ("a", "b", "c")
CARD = Card("segmentation", ("background", "shaft"))
DEPTH = Card("depth", ("mm",))
DICE, IOU, ASSD, HD95, MONAI = METRICS["segmentation"]
RMSE, _, ABS_REL, _ = METRICS["depth"]
TINY = {"height": 32, "width": 64, "batch_size": 2, "iterations": 2, "learning_rate": 1e-3}


def result(label, seed, dice, *, held_out=None, ticks=(), **costs):
    """One run's result; its Dice by site, the other metrics derived from it."""
    run = Run(Variant(label, "fedavg", {}, ticks), seed, 2, TINY, dict.fromkeys(SITES, ""), "x" if held_out else "")
    if dice is None:
        return Result(run, reason="too few sites")
    scores = {"sites": {site: metrics(value) for site, value in zip(SITES, dice, strict=True)}, "costs": costs}
    scores |= {"held_out": metrics(held_out) if held_out else None, "seconds": {"training": 100.0, "scoring": 8.0}}
    info = {"commit": "abc", "hardware": "a machine", **tasks(dict.fromkeys(SITES, CARD))}
    return Result(run, Path("runs") / f"{label}-{seed}" / "1", scores, info)


def parsed(*words):
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(words)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site.yaml of a tiny site, which no test changes."""
    out = tmp_path_factory.mktemp("sites") / "a"
    return write_site(out, look="rose", seed=1, videos={"train": 1, "test": 1}, frames_per_video=2, height=64, width=64)


def texts(table):
    return [list(row) for row in table.rows]


def marks(table):
    return [[table.marks.get((i, j), "") for j in range(len(row))] for i, row in enumerate(table.rows)]


def tasks(cards):
    """Return the tasks of the sites as in run.json."""
    return {
        "cards": {site: card.to_json() for site, card in cards.items()},
        "metrics": {kind: [metric.to_json() for metric in rows] for kind, rows in METRICS.items()},
    }


def metrics(dice):
    values = {"dice": dice, "iou": dice / 2, "assd": 10 - 10 * dice, "hd95": 20 - 20 * dice}
    return {name: {"shaft": value, "mean": value} for name, value in values.items()}


def compared(*results, layout="scores", tick_names=(), versus=(), sites=SITES):
    return Comparison("A title", layout, tick_names, sites, results, versus=versus)


def mixed(label, seed, dice, rmse, **variant):
    """One run whose sites a and b learn segmentation and whose site c learns depth."""
    one = result(label, seed, dice)
    variant = replace(one.run.variant, **variant)
    run = replace(one.run, variant=variant, sites=dict.fromkeys(THREE, ""), held_out="x")
    one.scores["sites"]["c"] = {"rmse": {"mean": rmse}, "abs_rel": {"mean": rmse / 100}, "frames": 4}
    one.scores["held_out"] = {"rmse": {"mean": 2 * rmse}, "abs_rel": {"mean": 0.5}}
    one.info.update(tasks({**dict.fromkeys(SITES, CARD), "c": DEPTH}))
    return replace(one, run=run)


@pytest.fixture
def two_tasks():
    """Two rows over two tasks; the row with better masks has worse depth."""
    return compared(mixed("FedAvg", 1, (0.5, 0.3), 4.0), mixed("PFedSIS", 1, (0.8, 0.6), 6.0), sites=THREE)


@pytest.fixture
def comparison():
    """Three rows; one of them has no result."""
    return compared(
        result("FedAvg", 1, (0.5, 0.3), held_out=0.2), result("FedAvg", 2, (0.7, 0.1), held_out=0.4),
        result("PFedSIS*", 1, (0.8, 0.6), held_out=0.1), result("PFedSIS*", 2, (0.6, 0.6), held_out=0.1),
        result("Krum", 1, None), result("Krum", 2, None),
    )  # fmt: skip


def illustrated(folder, count, *, samples=2, rounds=4):
    """A comparison of so many methods with records of every round, and pictures of some test frames on disk.

    Method number i has 0.02 i + 0.1 at site a and half of it at b, in round r its (r + 1) / rounds.
    """
    outcome = []
    for number in range(count):
        dice = 0.02 * number + 0.1
        one = result(f"Method {number}", 1, (dice, dice / 2), bytes_up=1e6 * number, bytes_down=1e6)
        one.scores["costs"]["seconds_round_slowest"] = 5.0 + number % 4
        here = folder / str(number)
        for site, value in zip(SITES, (dice, dice / 2), strict=True):
            one.scores["sites"][site]["pictures"] = [
                picture_record(here / site / TESTED, f"video {i}", value, shade=8 * number) for i in range(samples)
            ]
        rows = {
            site: {r: {"metrics": {"dice": {"mean": v * (r + 1) / rounds}}} for r in range(rounds)}
            for site, v in zip(SITES, (dice, dice / 2), strict=True)
        }
        records = Records(here, {"rounds": rounds, **one.info}, SITES, rows, {}, {})
        outcome.append(replace(one, folder=here, records=records))
    return Comparison("Many methods", "scores", (), SITES, tuple(outcome))


def picture_record(folder, sample, value, *, shade=0, names=("frame", "truth", "prediction"), scale=None):
    """What `pictures.write_pictures` leaves for one sample, drawn as plain colours."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [[name, f"{sample.replace(' ', '-')}-{name}.webp"] for name in names]
    for place, (_, file) in enumerate(files):
        picture = np.full((64, 80, 3), (shade, 60 * place, 200), np.uint8)
        (folder / file).write_bytes(cv2.imencode(".webp", picture)[1].tobytes())
    legend = [{"name": "shaft", "colour": "#56b4e9"}]
    return {
        "sample": sample, "value": value, "files": files, "legend": legend, "scale": scale, "hatched": False
    }  # fmt: skip


PLANNED = ("--preset", "fl-endovit-table6-triplets", "--scale", "quick", "--seeds", "7,")


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Return a function that plans a comparison without sites, and returns its preset and runs."""
    monkeypatch.setattr(compare, "_sites", lambda *_: {"sites": {}, "held_out": "", "server": ""})

    def plan_runs(*words):
        usual = PLANNED[2:] if "--methods" in words else PLANNED
        args = parsed(*usual, *words, "--out", str(tmp_path / "out"))
        preset = compare.chosen(args)
        return preset, compare.planned(args, preset)

    return plan_runs


def runs_of(name, scale="paper"):
    """Return a preset's runs as a comparison plans them, without sites."""
    preset = PRESETS[name]
    sizes = scale_of(scale, preset)
    return [resolved(Run(row, 1, sizes.rounds, sizes.training, {})) for row in at_scale(preset, sizes).variants]


def tiny_site(folder, seed, **changes):
    """Write a site of small frames and return its site.yaml as text."""
    usual = {"look": "rose", "videos": {"train": 1, "validation": 1, "test": 1}, "frames_per_video": 2}
    return str(write_site(folder, seed=seed, **{**usual, "height": 64, "width": 64, **changes}))
