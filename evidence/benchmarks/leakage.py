"""Attack a site's update by gradient inversion and membership inference.

    python -m evidence.benchmarks.leakage --out leakage

The attacks see the change of the weights by AdamW in the local steps of a round: all of it (FedAvg), and its shared and
personal parts (FedPer; the personal part stays at the site). The first column knows the gradient, which no job sends,
and shows the strength of the attack. `--out` writes leakage.json and leakage.webp.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from evidence.attacks.inversion import invert_round, true_gradient
from evidence.attacks.measures import auc, auc_interval, matched, psnr, ssim
from evidence.attacks.membership import losses
from evidence.attacks.sent import Sent, joined, train_round
from shared_components.common.atomic import write_json
from shared_components.common.drawing.pictures import captioned, side_by_side
from shared_components.core.bundle import load_bundle
from shared_components.core.initial_weights import load_initial_weights
from shared_components.core.method import load_method
from shared_components.core.partition import Role
from shared_components.core.task import Task, make_task
from shared_components.core.training_settings import Training
from shared_components.data.collate import collate
from shared_components.data.dataset import SampleDataset
from shared_components.data.files.classes import CLASS_MAPS
from shared_components.data.samples import samples
from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.networks.bundle_config import build_network
from shared_components.networks.tiny import Tiny
from shared_components.scenes.site import write_site

PARTS = CLASS_MAPS["parts"]
VIDEOS = {"train": 2, "validation": 2, "test": 2}
SHOWN = 320  # width of a panel in pixels
COLUMNS = ("gradient", "update", "shared", "personal")
LABELS = {
    "gradient": "the gradient (not sent)",
    "update": "full update",
    "shared": "shared part",
    "personal": "personal part (not sent)",
    "mean": "mean training frame",
    "other": "another frame",
}


@dataclass(frozen=True)
class Setting:
    """One row of the table of inversions.

    Attributes:
        network: ``tiny``, from the seed, or ``pvt_fpn``, from its shipped weights.
        frames: Number of attacked rounds, each with its own first batch.
        iterations: Iterations of the attack.
    """

    network: str
    batch: int
    steps: int
    frames: int
    iterations: int
    columns: tuple[str, ...] = COLUMNS
    size: tuple[int, int] = (32, 48)


SETTINGS = (
    Setting("tiny", 1, 1, 2, 300),
    Setting("tiny", 1, 20, 2, 300, COLUMNS[1:]),
    Setting("tiny", 8, 1, 1, 300, ("gradient", "update", "shared")),
    Setting("pvt_fpn", 1, 1, 1, 60, ("gradient", "update", "shared"), (32, 64)),
)
INTERVALS = {"auc": "interval", "beside": "beside_interval"}
MEMBERSHIP = {"size": (64, 96), "batch": 2, "steps": (20, 100)}


def render(folder: Path) -> Site:
    """Write a site with six videos in one look."""
    path = write_site(folder, look="rose", seed=11, videos=VIDEOS, frames_per_video=10, height=128, width=160)
    return load_site(path)


def network_of(name: str, task: Task) -> nn.Module:
    """Build a network with the initial weights of a federation."""
    torch.manual_seed(2022)
    if name == "tiny":
        return Tiny(out_channels=task.channels, width=32)
    network = build_network(load_bundle(name).network, out_channels=task.channels)
    load_initial_weights(network, "rendered", card=task.card, bundle=name)
    return network


def dataset_of(site: Site, split: str, size: tuple[int, int]) -> SampleDataset:
    """Return a split's frames at a size."""
    return SampleDataset(samples(site, split), height=size[0], width=size[1], site=site)


def round_of(site: Site, setting: Setting, task: Task, number: int, split: str = "train") -> Sent:
    """Run one round of the site on a split's frames."""
    height, width = setting.size
    training = Training(
        height=height, width=width, batch_size=setting.batch, iterations=setting.steps, learning_rate=5e-4
    )
    return train_round(
        network_of(setting.network, task),
        load_method("fedper"),
        task,
        dataset_of(site, split, setting.size),
        training,
        round=number,
    )


def masks_of(sent: Sent) -> dict[str, dict[str, Tensor]]:
    """Return the input of each column's attacker."""
    everything = sent.masks(Role.GLOBAL, Role.LOCAL)
    return {
        "gradient": everything,
        "update": everything,
        "shared": sent.masks(Role.GLOBAL),
        "personal": sent.masks(Role.LOCAL),
    }


def inversions(site: Site, setting: Setting, task: Task) -> Iterator[tuple[dict[str, Any], dict[str, Tensor]]]:
    """Attack some rounds; yield the scores of each round by column, and the first frame with its reconstructions."""
    train = dataset_of(site, "train", setting.size)
    average = collate([train[i] for i in range(len(train))])["image"].mean(0)
    for number in range(setting.frames):
        sent = round_of(site, setting, task, number)
        true = sent.batches[0]["image"]
        others = round_of(site, replace(setting, steps=1), task, number + 100).batches[0]["image"]
        found = {"mean": average.expand_as(true), "other": matched(others, true)}
        for column in setting.columns:
            images, _ = invert_round(
                sent,
                masks_of(sent)[column],
                iterations=setting.iterations,
                seed=number,
                direction=true_gradient(sent) if column == "gradient" else None,
            )
            found[column] = matched(images, true)
        scores = {
            column: {
                "psnr": mean(psnr(a, b) for a, b in zip(images, true, strict=True)),
                "ssim": mean(ssim(a, b) for a, b in zip(images, true, strict=True)),
            }
            for column, images in found.items()
        }
        yield scores, {"true": true[0], **{column: images[0] for column, images in found.items()}}


def membership(site: Site, task: Task) -> list[dict[str, Any]]:
    """Infer membership of frames from the loss of models that know all or a part of a site's update.

    Two scores: the loss, and the difference from the loss of a reference model that was trained equally long on other
    frames (Watson et al., ICLR 2022, arXiv 2111.08440). An attacker with own frames can train a reference model.
    """
    splits = [dataset_of(site, split, MEMBERSHIP["size"]) for split in ("train", "test")]  # members, others
    rows = []
    for steps in MEMBERSHIP["steps"]:
        setting = Setting("pvt_fpn", MEMBERSHIP["batch"], steps, 1, 0, size=MEMBERSHIP["size"])
        sent, reference = (round_of(site, setting, task, 0, split) for split in ("train", "validation"))
        found = [
            {
                name: [losses(sent.before, state, task, split) for split in splits]
                for name, state in states_of(one).items()
            }
            for one in (sent, reference)
        ]
        rows += [{"steps": steps, "model": name, **_told(found[0][name], found[1][name])} for name in found[0]]
    return rows


def states_of(sent: Sent) -> dict[str, dict[str, Tensor]]:
    """Return models with none, all or a part of a round's update; other tensors are as received."""
    received = {name: value.clone() for name, value in sent.before.state_dict().items()}
    return {
        "as received": received,
        "whole model": sent.after,
        "shared part": joined(sent.after, received, sent.masks(Role.GLOBAL)),
        "personal part": joined(sent.after, received, sent.masks(Role.LOCAL)),
    }


def _told(found: list[list[float]], reference: list[list[float]]) -> dict[str, Any]:
    beside = [[own - other for own, other in zip(*pair, strict=True)] for pair in zip(found, reference, strict=True)]
    return {
        "auc": auc(*found),
        "interval": auc_interval(*found),
        "beside": auc(*beside),
        "beside_interval": auc_interval(*beside),
        "members": len(found[0]),
        "others": len(found[1]),
        "loss": mean(found[0]),
        "loss_others": mean(found[1]),
    }


def row_of_pictures(pictures: Mapping[str, Tensor], columns: tuple[str, ...], title: str) -> np.ndarray:
    """Draw one row: the true frame, the reconstructions and the mean training frame."""
    names = {"true": title, **{name: LABELS[name] for name in (*columns, "mean")}}
    panels = []
    for name, caption in names.items():
        small = (pictures[name].permute(1, 2, 0).clamp(0, 1).numpy() * 255).astype(np.uint8)
        height = round(SHOWN * small.shape[0] / small.shape[1])
        panels.append(captioned(cv2.resize(small, (SHOWN, height), interpolation=cv2.INTER_NEAREST), caption))
    return side_by_side(panels)


def stacked(rows: list[np.ndarray]) -> np.ndarray:
    """Stack rows of several widths on a white background."""
    width = max(row.shape[1] for row in rows)
    return np.concatenate(
        [np.pad(row, ((0, 6), (0, width - row.shape[1]), (0, 0)), constant_values=255) for row in rows]
    )


def main() -> None:
    """Measure, print both tables, and write the numbers and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for leakage.json and leakage.webp")
    parser.add_argument("--networks", default="tiny,pvt_fpn", help="of the inversions")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    task = make_task("segmentation", load_bundle("pvt_fpn").tasks["segmentation"], classes=PARTS)
    found: dict[str, Any] = {"commit": commit(), "hardware": hardware(), "inversions": []}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        site = render(Path(folder) / "site")
        for setting in (one for one in SETTINGS if one.network in chosen.networks.split(",")):
            began = time.perf_counter()
            scores, pictures = zip(*inversions(site, setting, task), strict=True)
            named = {"network": setting.network, "batch": setting.batch, "steps": setting.steps}
            found["inversions"].append({**named, "rounds": scores, "seconds": time.perf_counter() - began})
            said = f"{setting.network}, batch {setting.batch}, {setting.steps} step{'s' * (setting.steps > 1)}"
            rows.append(row_of_pictures(pictures[0], setting.columns, said))
            print(f"{said}: {_scores(scores)} ({time.perf_counter() - began:.0f} s)", flush=True)
            if chosen.out:
                write_json(chosen.out / "leakage.json", found)
                Image.fromarray(stacked(rows)).save(chosen.out / "leakage.webp", quality=80)
        found["membership"] = membership(site, task)
    if chosen.out:
        write_json(chosen.out / "leakage.json", found)
    print(f"\n{tables(found)}\n\ncommit {found['commit']}, {found['hardware']}")


def tables(found: Mapping[str, Any]) -> str:
    """Return both tables in Markdown."""
    columns = list(LABELS)
    lines = [
        "| Network | Batch | Local steps | " + " | ".join(LABELS[name] for name in columns) + " |",
        "| --- | ---: | ---: |" + " ---: |" * len(columns),
    ]
    for row in found["inversions"]:
        cells = [_mean_scores(row["rounds"], name) for name in columns]
        lines.append(f"| {row['network']} | {row['batch']} | {row['steps']} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| Local steps | Model | AUC of the loss | AUC beside a reference | Mean loss of members, of others |",
    ]
    lines.append("| ---: | --- | ---: | ---: | ---: |")
    for row in found["membership"]:
        both = [f"{row[name]:.2f} ({row[i][0]:.2f} to {row[i][1]:.2f})" for name, i in INTERVALS.items()]
        means = f"{row['loss']:.3f}, {row['loss_others']:.3f}"
        lines.append(f"| {row['steps']} | {row['model']} | {both[0]} | {both[1]} | {means} |")
    return "\n".join(lines)


def _mean_scores(rounds: list[Mapping[str, Any]], column: str) -> str:
    if column not in rounds[0]:
        return ""
    both = [mean(one[column][name] for one in rounds) for name in ("psnr", "ssim")]
    return f"{both[0]:.1f} dB, {both[1]:.2f}"


def _scores(rounds: list[Mapping[str, Any]]) -> str:
    return "; ".join(f"{name} {_mean_scores(rounds, name)}" for name in LABELS if name in rounds[0])


if __name__ == "__main__":
    main()
