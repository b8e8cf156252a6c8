"""Plausible run directories, written by the same records a federation writes."""

import json
import math

import cv2
import numpy as np
import pytest

from shared_components.core.card import Card, Metric
from shared_components.core.evaluation import json_values
from shared_components.core.task import make_task
from shared_components.data.samples import Item
from shared_components.reporting.overlays import depth_sheet, segmentation_sheet

CLASSES = ("shaft", "wrist", "clasper")
SEGMENTATION = Card("segmentation", ("background", *CLASSES))
DEPTH = Card("depth", ("mm",))
ABOUT = {
    "pfedsis": ("PFedSIS", "Every site gets a model of its own.", "Xu et al., IEEE TBME 2025"),
    "fedavg": ("FedAvg", "The server averages the models.", "McMahan et al., AISTATS 2017"),
}
PERCENT = {"unit": "%", "factor": 100.0, "digits": 2}
PIXELS, MM = {"unit": "px", "digits": 2}, {"unit": "mm", "digits": 2}
METRICS = {
    "segmentation": (
        Metric("dice", "Dice", True, **PERCENT, in_delta=True), Metric("iou", "IoU", True, **PERCENT, in_delta=True),
        Metric("assd", "ASSD", False, **PIXELS), Metric("hd95", "HD95", False, **PIXELS),
        Metric("hd95_monai", "HD95 (MONAI)", False, **PIXELS),
    ),
    "depth": (
        Metric("rmse", "RMSE", False, **MM), Metric("mae", "MAE", False, **MM),
        Metric("abs_rel", "absolute relative error", False), Metric("delta1", "δ < 1.25", True, **PERCENT),
    ),
}  # fmt: skip
DECODER = [f"decoder_personal.{part}.{i}" for part in ("lateral", "segmentation") for i in range(4)]
LAYERS = (*(f"encoder.block{i}" for i in range(1, 5)), *DECODER, "head_personal", "head_appearance")
SITES = ("site-1", "site-2", "site-3")


def write_run(folder, *, sites=SITES, rounds=8, done=None, mixing=True, overlays=True, depth=()):
    """Write a run of `rounds` rounds, `done` of them finished (all by default), and return its folder.

    The sites in `depth` learn depth, all others segmentation.
    """
    generator = np.random.default_rng(0)
    finished = rounds if done is None else done
    lines = []
    for r in range(finished + (done is None)):
        for i, site in enumerate(sites):
            lines.append(site_line(generator, r, i, site, last=r == rounds, mixed=mixing, depth=site in depth))
        if r < rounds:
            lines.append(aggregation_line(generator, r, sites, mixing=mixing))
    (folder / "server").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run_info(sites, rounds, "pfedsis" if mixing else "fedavg", depth)))
    (folder / "server" / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for i, site in enumerate(sites if done is None else ()):
        final = errors(rounds, i) if site in depth else scores(generator, rounds, i, distances=True)
        write_site(folder / site, generator, final, overlays=overlays, depth=site in depth)
    return folder


def run_info(sites, rounds, method, depth=()):
    said = dict(zip(("label", "idea", "paper"), ABOUT[method], strict=True))
    return {
        "cards": {site: (DEPTH if site in depth else SEGMENTATION).to_json() for site in sites},
        "metrics": {kind: [metric.to_json() for metric in rows] for kind, rows in METRICS.items()},
        "job": method, "method": method, "said": said, "sites": list(sites), "rounds": rounds, "seed": 7,
        "arguments": {"mode": "corrected", "appearance_weight": 1.0}, "commit": "10cd611",
        "start": {"start": "rendered", "sha256": "1f0c22ab" + "0" * 56},
        "hardware": "2 x Intel Xeon 2.1 GHz, 8 GiB, no GPU", "started": "2025-11-03T09:12:44+00:00",
    }  # fmt: skip


def site_line(generator, r, i, site, *, last, mixed, depth):
    metrics = errors(r, i) if depth else scores(generator, r, i)
    line = {"kind": "site", "round": r, "site": site, "samples": 40 + i, "metrics": metrics}
    if last:
        return line
    up = {"global": 13_520_000, "mixed": 13_640_000, "sensitivity": 8} if mixed else {"global": 27_160_000}
    training = 9 + i % 5 + generator.normal(0, 0.3)
    fade = math.exp(-r / 4)
    further = {"appearance": 0.01 + 0.05 * fade, "consistency": 0.02 + 0.1 * fade} if mixed else {}
    return line | {
        "loss": {"segmentation": 0.2 + 1.1 * fade, **further},
        "seconds": {"training": training, "measuring": 1.1, "validating": 0.6, "waiting": 0.4, "total": training + 2.4},
        "bytes": {"up": up, "down": {key: value for key, value in up.items() if key != "sensitivity"}},
        "memory_mb": 812 + 7 * i,
    }


def scores(generator, r, i, *, distances=False):
    """Give metrics that rise with the round; the third class of the third site is never seen."""
    rise, tops = 1 - math.exp(-(r + 0.4) / 2.5), [top - 0.06 * (i % 6) for top in (0.86, 0.68, 0.6)]
    noisy = [float(np.clip(top * rise + generator.normal(0, 0.015), 0, 1)) for top in tops]
    dice = dict(zip(CLASSES, noisy, strict=True))
    if i == 2:
        dice["clasper"] = math.nan
    table = {"dice": dice, "iou": {name: value / (2 - value) for name, value in dice.items()}}
    if distances:
        for metric, farthest in (("assd", 60), ("hd95", 210), ("hd95_monai", 240)):
            table[metric] = {name: farthest * (1 - value) for name, value in dice.items()}
    for values in table.values():
        values["mean"] = float(np.nanmean(list(values.values())))
    both = zip(CLASSES, (0, 1, 10 if i == 2 else 2), strict=True)
    empty = {name: {"prediction": 1, "truth": 0, "both": n} for name, n in both}
    return {**table, "empty": empty, "frames": 10, "policy": "diagonal"}


def errors(r, i):
    """Give depth metrics whose errors fall with the round and grow with the site's number."""
    rmse = 4.0 + i + 20 * math.exp(-r / 2)
    values = {"rmse": rmse, "mae": 0.7 * rmse, "abs_rel": rmse / 80, "delta1": math.exp(-rmse / 20)}
    return {**{name: {"mean": value} for name, value in values.items()}, "frames": 10}


def aggregation_line(generator, r, sites, *, mixing):
    line = {"kind": "aggregation", "round": r, "seconds": 0.21, "rejected": []}
    if not mixing:
        return line | {"entropy": {}}
    weights = {site: {layer: softmax(generator, r, i, sites) for layer in LAYERS} for i, site in enumerate(sites)}
    every = [list(row.values()) for layers in weights.values() for row in layers.values()]
    entropy = np.mean([-sum(w * math.log(w) for w in row) / math.log(max(2, len(row))) for row in every])
    return line | {"mixing": weights, "entropy": {"hypernetwork": float(entropy), "sensitivity": 0.99997}}


def softmax(generator, r, own, sites):
    logits = generator.normal(0, 0.1 + 0.04 * r, len(sites))
    logits[own] += 0.25 * r
    return dict(zip(sites, (np.exp(logits) / np.exp(logits).sum()).tolist(), strict=True))


def write_site(folder, generator, final, *, overlays, depth):
    (folder / "overlays").mkdir(parents=True)
    (folder / "final.json").write_text(json.dumps(final))
    for number, rank in enumerate(("best", "typical", "worst") if overlays else ()):
        image, truth, prediction = scene(generator, off=2 + 6 * number)
        if depth:
            far = np.linspace(40, 90, truth.shape[1], dtype=np.float32)[None].repeat(truth.shape[0], 0)
            sheet = depth_sheet(image, np.where(truth, 0, far), far + 3 * number)
            marks = {"rmse": {"mean": 3.0 * number}}
        else:
            sheet = segmentation_sheet(image, truth, prediction, SEGMENTATION.outputs)
            task = make_task("segmentation", classes=SEGMENTATION.outputs)
            item = Item(np.zeros((1, *truth.shape, 3), np.uint8), {"label": truth}, "")
            marks = json_values(task.summarise([task.score(prediction, item, quick=True)]))
        name = f"validation-{number:04d}-video_1-{5 * number}"
        cv2.imwrite(str(folder / "overlays" / f"{name}.png"), sheet.image()[..., ::-1])
        about = {"split": "validation", "rank": rank, "of": 12, "video": "video_1", "frame": 5 * number}
        (folder / "overlays" / f"{name}.json").write_text(json.dumps({**about, "scores": marks, **sheet.to_json()}))


def scene(generator, *, off):
    """Draw a tissue-coloured frame with one instrument, its mask, and a mask that is some pixels off."""
    height, width = 256, 320
    noise = cv2.resize(generator.normal(0, 22, (16, 20)).astype(np.float32), (width, height))[..., None]
    image = np.clip(np.array([165, 75, 65]) + noise, 0, 255).astype(np.uint8)
    start, elbow, tip = ((int(x), int(y)) for x, y in generator.integers((20, 20), (300, 236), (3, 2)))
    truth, prediction = (np.zeros((height, width), np.uint8) for _ in range(2))
    for mask, shift in ((truth, 0), (prediction, off)):
        moved = [(x + shift, y + shift) for x, y in (start, elbow, tip)]
        cv2.line(mask, moved[0], moved[1], 1, 26)
        cv2.circle(mask, moved[1], 16, 2, cv2.FILLED)
        cv2.line(mask, moved[1], moved[2], 3, 9)
    image[truth > 0] = (150, 150, 155)
    return image, truth, prediction


def change_info(folder, **changes):
    """Change entries of run.json; None removes one."""
    info = json.loads((folder / "run.json").read_text()) | changes
    (folder / "run.json").write_text(json.dumps({key: value for key, value in info.items() if value is not None}))


def add_line(folder, **line):
    """Append a record to rounds.jsonl."""
    with (folder / "server" / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.fixture
def make_run(tmp_path):
    return lambda name="run", **options: write_run(tmp_path / name, **options)
