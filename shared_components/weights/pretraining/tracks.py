"""Score how well a network tracks objects from a box in the first frame, compared with three static baselines.

The videos have looks that training never draws. A score is the IoU of an object with the ground truth, by the number of
frames since its box. Only objects visible in the first frame count. The baselines repeat one mask in all frames: the
area of the box; the network's own mask of the first frame (the fair baseline, with the same input); and the ground
truth of the first frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shared_components.common.progress import follow
from shared_components.core.prompts import Prompts, class_boxes
from shared_components.core.video_metrics import mean_known
from shared_components.data.samples import SampleSpec
from shared_components.data.transforms import to_tensors
from shared_components.scenes.looks import LOOKS
from shared_components.weights.pretraining.filming import KINDS, Filming, chosen
from shared_components.weights.pretraining.plan import Settings
from shared_components.weights.pretraining.stream import RESERVED, held_out

AGES, INTERVAL = 8, 0.5  # frames of a video, and the seconds between two
LOOKS_SCORED = 12
OBJECTS = 3
SHOWN = NETWORK, BOX, OWN, TRUE = "network", "filled box", "frozen own mask", "frozen true mask"


@dataclass(frozen=True)
class Video:
    """Frames (1, T, 3, H, W) in 0..1, and labels (1, T, H, W) of objects 1, 2, ..."""

    clip: Tensor
    label: Tensor


class Tracks:
    """Held-out videos at the last phase's size, rendered once."""

    def __init__(self, settings: Settings) -> None:
        looks = {"random": [f"random-{RESERVED + number}" for number in range(LOOKS_SCORED)], "named": LOOKS}
        self._videos = {
            name: [
                _video(look, n, settings.size) for n, look in enumerate(follow(some, "rendering videos to score on,"))
            ]
            for name, some in looks.items()
        }

    def scores(self, network: nn.Module) -> dict[str, Any]:
        """Return the mean IoU (0..1) by group of looks, tracker and age in frames; and the number of objects."""
        return {name: iou_by_age(network, videos) for name, videos in self._videos.items()}

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Write each tracker's IoU in the first frame, and its mean over the later ones."""
        by_look = []
        for group, found in scores.items():
            each = [f"{who} {found[who][0]:.3f} {mean_known(np.asarray(found[who][1:], float)):.3f}" for who in SHOWN]
            by_look.append(f"{group} looks " + ", ".join(each))
        return "IoU in the first frame, later: " + "; ".join(by_look)


def iou_by_age(network: nn.Module, videos: list[Video]) -> dict[str, Any]:
    """Return the mean IoU of each tracker over all objects, in each frame, and how many objects each mean is of."""
    device, training = next(network.parameters()).device, network.training
    network.eval()
    found: dict[str, list[np.ndarray]] = {who: [] for who in SHOWN}
    for video in videos:
        boxes = Prompts("first")(class_boxes(video.label, OBJECTS + 1), size=_size(video.label))
        with torch.no_grad():
            answer = network(video.clip.to(device), boxes.to(device)).argmax(2).cpu()
        own, truth = one_hot(answer), one_hot(video.label)  # (T, N, H, W)
        still = {OWN: own[:1].expand_as(own), TRUE: truth[:1].expand_as(truth), BOX: filled(boxes, video.label)}
        shows = truth.any((2, 3))  # (T, N)
        seen = (shows & shows[:1]).numpy()
        for who, masks in {NETWORK: own, **still}.items():
            found[who].append(np.where(seen, iou(masks, truth).numpy(), np.nan))
    network.train(training)
    by_age = {who: np.concatenate(values, axis=1) for who, values in found.items()}  # (T, objects)
    counts = (~np.isnan(by_age[NETWORK])).sum(1).tolist()
    return {who: [*map(mean_known, rows)] for who, rows in by_age.items()} | {"objects": counts}


def one_hot(label: Tensor) -> Tensor:
    """(1, T, H, W) -> (T, N, H, W) bool, of the objects 1..N."""
    return torch.stack([label[0] == number for number in range(1, OBJECTS + 1)], 1)


def filled(boxes: Tensor, label: Tensor) -> Tensor:
    """Return the area (T, N, H, W) of first boxes (1, T, N, 4), in every frame; pixels count whose centre is within."""
    _, T, H, W = label.shape
    x0, y0, x1, y1 = (side[:, None, None] for side in boxes[0, 0].unbind(-1))  # (N, 1, 1)
    y, x = torch.arange(H)[:, None] + 0.5, torch.arange(W)[None] + 0.5
    inside = (x > x0) & (x < x1) & (y > y0) & (y < y1)  # (N, H, W); False where a box is NaN
    return inside.expand(T, *inside.shape)


def iou(one: Tensor, other: Tensor) -> Tensor:
    """(..., H, W) bool -> (...): the overlap over the union; 0 where both are empty."""
    both, either = (one & other).sum((-2, -1)), (one | other).sum((-2, -1))
    return both / either.clamp_min(1)


def _video(look: str, number: int, size: tuple[int, int]) -> Video:
    """Render a video whose kind of objects follows from its number."""
    spec = SampleSpec(frames=AGES, interval=INTERVAL, targets_of="all")
    things, ids = KINDS[number % len(KINDS)]
    (item,) = held_out(look, number, size=size, spec=spec, count=1, how=Filming(1 / INTERVAL, things, ids))
    tensors = to_tensors(item.images, {"label": chosen(item.targets["label"], OBJECTS)})
    return Video(tensors["image"][None].float() / 255, tensors["label"][None].long())


def _size(label: Tensor) -> tuple[int, int]:
    return label.shape[-2], label.shape[-1]
