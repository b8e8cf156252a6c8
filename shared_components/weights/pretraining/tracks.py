"""Score how well a network tracks objects from a box in the first frame, compared with three static baselines.

The videos have looks that training never draws. A score is the IoU of an object with the ground truth, by the number of
frames since its box. Only objects visible in the first frame count. The baselines repeat one mask in all frames: the
area of the box; the network's own mask of the first frame (the fair baseline, with the same input); and the ground
truth of the first frame.
"""

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
from shared_components.weights.pretraining.plan import Settings
from shared_components.weights.pretraining.stream import KINDS, RESERVED, Filming, held_out, renumbered

AGES, INTERVAL = 8, 0.5  # frames per video, and the seconds between frames
LOOKS_SCORED = 12
OBJECTS = 3
TRACKERS = NETWORK, BOX, OWN, TRUE = "network", "filled box", "frozen own mask", "frozen true mask"


@dataclass(frozen=True)
class Video:
    """Frames (1, T, 3, H, W) in 0..1, and labels (1, T, H, W) of objects 1, 2, ..."""

    clip: Tensor
    label: Tensor


class Tracks:
    """Held-out videos at the last phase's size, rendered once."""

    def __init__(self, settings: Settings) -> None:
        groups = {"random": [f"random-{RESERVED + number}" for number in range(LOOKS_SCORED)], "named": LOOKS}
        self._videos: dict[str, list[Video]] = {}
        for name, looks in groups.items():
            numbered = enumerate(follow(looks, "rendering videos to score on,"))
            self._videos[name] = [_video(look, number, settings.size) for number, look in numbered]

    def scores(self, network: nn.Module) -> dict[str, Any]:
        """Return the mean IoU (0..1) by group of looks, tracker and frame, and the number of objects."""
        return {name: iou_by_age(network, videos) for name, videos in self._videos.items()}

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Return each tracker's IoU in the first frame and its mean over later frames as text."""
        texts = []
        for group, record in scores.items():
            later = {name: mean_known(np.asarray(record[name][1:], float)) for name in TRACKERS}
            texts.append(f"{group} looks " + ", ".join(f"{t} {record[t][0]:.3f} {later[t]:.3f}" for t in TRACKERS))
        return "IoU in the first frame, later: " + "; ".join(texts)


def iou_by_age(network: nn.Module, videos: list[Video]) -> dict[str, Any]:
    """Return the mean IoU of each tracker over all objects, by frame, and the number of objects."""
    device, training = next(network.parameters()).device, network.training
    network.eval()
    values: dict[str, list[np.ndarray]] = {name: [] for name in TRACKERS}
    for video in videos:
        H, W = video.label.shape[-2:]
        boxes = Prompts("first")(class_boxes(video.label, OBJECTS + 1), size=(H, W))
        with torch.no_grad():
            answer = network(video.clip.to(device), boxes.to(device)).argmax(2).cpu()
        own, truth = one_hot(answer), one_hot(video.label)  # (T, N, H, W)
        static = {OWN: own[:1].expand_as(own), TRUE: truth[:1].expand_as(truth), BOX: filled(boxes, video.label)}
        visible = truth.any((2, 3))  # (T, N)
        counted = (visible & visible[:1]).numpy()
        for name, masks in {NETWORK: own, **static}.items():
            values[name].append(np.where(counted, iou(masks, truth).numpy(), np.nan))
    network.train(training)
    by_age = {name: np.concatenate(rows, axis=1) for name, rows in values.items()}  # (T, objects)
    counts = (~np.isnan(by_age[NETWORK])).sum(1).tolist()
    return {name: [*map(mean_known, rows)] for name, rows in by_age.items()} | {"objects": counts}


def one_hot(label: Tensor) -> Tensor:
    """Convert labels (1, T, H, W) to masks (T, N, H, W) of the objects 1..N."""
    return torch.stack([label[0] == number for number in range(1, OBJECTS + 1)], 1)


def filled(boxes: Tensor, label: Tensor) -> Tensor:
    """Return masks (T, N, H, W) of the first frame's boxes (1, T, N, 4); pixels with their centre inside count."""
    _, T, H, W = label.shape
    x0, y0, x1, y1 = (side[:, None, None] for side in boxes[0, 0].unbind(-1))  # (N, 1, 1)
    y, x = torch.arange(H)[:, None] + 0.5, torch.arange(W)[None] + 0.5
    inside = (x > x0) & (x < x1) & (y > y0) & (y < y1)  # (N, H, W); False for a NaN box
    return inside.expand(T, *inside.shape)


def iou(one: Tensor, other: Tensor) -> Tensor:
    """Return intersection over union (...) of masks (..., H, W); 0 if both are empty."""
    both, either = (one & other).sum((-2, -1)), (one | other).sum((-2, -1))
    return both / either.clamp_min(1)


def _video(look: str, number: int, size: tuple[int, int]) -> Video:
    """Render a video; its number selects the kind of objects."""
    spec = SampleSpec(frames=AGES, interval=INTERVAL, targets_of="all")
    things, ids = KINDS[number % len(KINDS)]
    (item,) = held_out(look, number, size=size, spec=spec, count=1, how=Filming(1 / INTERVAL, things, ids))
    tensors = to_tensors(item.images, {"label": renumbered(item.targets["label"], OBJECTS)})
    return Video(tensors["image"][None].float() / 255, tensors["label"][None].long())
