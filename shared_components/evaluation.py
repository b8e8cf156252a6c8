"""Score a network on a site's frames: quickly during the rounds, thoroughly at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import nn

from shared_components.bundle_config import Training
from shared_components.data.dataset import SampleDataset
from shared_components.data.sites import Sample, Site, read_sample
from shared_components.data.transforms import resize_image
from shared_components.inference import enlarge, network_input
from shared_components.metrics import frame_scores, region_scores, summarise
from shared_components.training import predict

OVERLAYS = 3  # pictures a site keeps of its own frames


def quick(network: nn.Module, dataset: SampleDataset, site: Site, *, batch_size: int = 8) -> dict[str, Any]:
    """Score Dice and IoU at the network's input size; distances wait for :func:`thorough`.

    Returns:
        ``{"dice": {class: value, "mean": value}, "iou": ..., "frames": n}``; None where nothing was to be scored.
    """
    where = next(network.parameters()).device
    predictions, truths = [], []
    for start in range(0, len(dataset), batch_size):
        items = [dataset[i] for i in range(start, min(start + batch_size, len(dataset)))]
        image = torch.stack([item["image"] for item in items]).to(where).float() / 255
        predictions.append(predict(network, image).cpu())
        truths.append(torch.stack([item["label"] for item in items]))
    names = site.classes[1:]
    scores = region_scores(torch.cat(predictions), torch.cat(truths), classes=range(1, len(names) + 1))
    return plain(summarise(scores, names))


def predictions(
    network: nn.Module, site_frames: Sequence[Sample], settings: Training
) -> Iterator[tuple[Sample, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (frame, image, truth, prediction) one frame at a time; the last two at the mask's own resolution."""
    where = next(network.parameters()).device
    network.eval()
    for frame in site_frames:
        item = read_sample(frame)
        image, truth = item.images[-1], item.targets["label"]
        with torch.no_grad():
            logits = network(network_input(image, settings.height, settings.width).to(where))
        yield frame, image, truth, enlarge(logits, truth.shape)


def thorough(
    network: nn.Module, chosen: Sequence[Sample], site: Site, split: str, settings: Training, folder: Path
) -> dict[str, Any]:
    """Score Dice, IoU, ASSD and HD95 at the original resolution, and leave overlays in ``folder/overlays``."""
    from shared_components.reporting.overlays import triptych

    shown = {round(i * (len(chosen) - 1) / max(OVERLAYS - 1, 1)) for i in range(OVERLAYS)}
    scores = []
    for number, (frame, image, truth, prediction) in enumerate(predictions(network, chosen, settings)):
        scores.append(frame_scores(prediction, truth, classes=range(1, len(site.classes))))
        if number in shown:
            image = resize_image(
                image, *truth.shape
            )  # the PFedSIS pack keeps test masks at their native size
            picture = triptych(image, truth, prediction, site.classes)
            path = folder / "overlays" / f"{split}-{number:04d}-{frame.video}-{frame.index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), picture[..., ::-1])
    return {"site": site.name, "split": split, **plain(summarise(scores, site.classes[1:]))}


def plain(value: Any) -> Any:
    """Turn numpy values into JSON's, and what is not a number into None."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (np.integer, int)):
        return int(value)
    if isinstance(value, (np.floating, float)):
        return float(value) if math.isfinite(value) else None
    return value


def peak_memory_mb() -> float | None:
    """Return this process's peak resident memory in MB (VmHWM), where the system says it."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return None
