"""Calibrate a model: an out-of-distribution score for its input, and a temperature for its probabilities.

`surgfl calibrate` writes `calibration.safetensors` next to the weights, with the hash of the weights. The
out-of-distribution score uses the encoder's feature maps, averaged over the frames of a video. It is the larger of

- the Mahalanobis distance from known videos (Lee et al., NeurIPS 2018), and
- the position along a direction from known to other videos, found by ridge regression.

The temperature (Guo et al., ICML 2017) divides the logits before the softmax and changes no mask.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from msgspec import Meta
from msgspec.structs import asdict
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.common.schema import Schema, parse
from shared_components.core.evaluation import network_input
from shared_components.core.shipped_weights import sha256_of
from shared_components.networks import checkpoints
from shared_components.networks.checkpoints import CheckpointError
from shared_components.networks.protocols import provides

logger = logging.getLogger(__name__)
FILE = "calibration.safetensors"
SIZE = (96, 128)  # (height, width) of the frames for the score: a quarter of the size of the shipped weights
FRAMES = 4  # minimum number of frames for `limit`; shorter videos use `limit_of_few`, because their scores vary more
GRID, MIDDLE = (3, 4), [5, 6]  # grid of a frame (rows, columns), and the numbers of the middle cells
ALLOWED = 0.01  # fraction of the known videos that may be above the limit
COLDEST, HOTTEST = 0.05, 20.0  # range of the temperature

Limit = Annotated[float, Meta(gt=0, le=1e9)]


class Encoding(Protocol):
    """A network with an encoder that returns feature maps (B, C, h, w) for images (B, 3, H, W)."""

    encoder: nn.Module


class Facts(Schema, frozen=True):
    """Header of a calibration file; `weights` is the SHA-256 of the model's weights file."""

    weights: str
    temperature: Annotated[float, Meta(ge=COLDEST, le=HOTTEST)]
    offset: Annotated[float, Meta(ge=-1e9, le=1e9)]
    limit: Limit
    limit_of_few: Limit
    card: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibration of a model; both scores are divided by their 99th percentile over known videos."""

    facts: Facts  # header of the file
    centre: Tensor  # mean features of the known videos, (D,)
    axes: Tensor  # (K, D); the Mahalanobis distance is the norm of ``axes @ (mean - centre)``
    direction: Tensor  # (D,); ``direction @ contrast + offset`` is the position between known and other videos

    def score(self, features: Tensor) -> float:
        """Return a video's out-of-distribution score, usually below 1, from its `encoder_features` (N, 2, D)."""
        if features.shape[2:] != self.centre.shape:
            raise CheckpointError(
                f"{FILE} is for a network with {len(self.centre)} feature channels, but this network has "
                f"{features.shape[2]}; run `surgfl calibrate` again"
            )
        mean, contrast = features.mean(0)
        distance = torch.linalg.vector_norm(self.axes @ (mean - self.centre))
        return max(float(distance), float(self.direction @ contrast) + self.facts.offset)

    def limit(self, frames: int) -> float:
        """Return the score above which a video with this number of frames is out of distribution."""
        return self.facts.limit if frames >= FRAMES else self.facts.limit_of_few


def resized_frame(frame: np.ndarray) -> Tensor:
    """Return a frame, uint8 RGB (H, W, 3), resized for the score: (1, 3, *SIZE) in [0, 1]."""
    return network_input(frame[None], *SIZE)


def encoder_features(network: nn.Module, images: Tensor) -> Tensor:
    """Return pooled features, float32 (N, 2, D) on the CPU, of images (N, 3, H, W); ValueError without an encoder."""
    if not provides(network, Encoding):
        raise ValueError(f"{type(network).__name__} has no encoder, which the score needs; use another network")
    with torch.no_grad():
        maps = network.encoder(images.to(next(network.parameters()).device))
    return pooled([maps] if isinstance(maps, Tensor) else maps)


def pooled(maps: Sequence[Tensor]) -> Tensor:
    """Return the mean of feature maps (N, C, h, w) and the contrast of the middle to the border: (N, 2, D).

    The middle is two of three by four cells: eyes and hollow organs have a round structure there.
    """
    cells = torch.cat([F.adaptive_avg_pool2d(each.float(), GRID).flatten(2) for each in maps], 1).cpu()  # (N, D, 12)
    middle = cells[..., MIDDLE].mean(2)
    border = (cells.sum(2) - len(MIDDLE) * middle) / (cells.shape[2] - len(MIDDLE))
    return torch.stack([cells.mean(2), middle - border], 1)


def write_calibration(path: Path, made: Calibration) -> None:
    """Write a calibration, see `checkpoints.write_tensors`."""
    tensors = {"centre": made.centre, "axes": made.axes.contiguous(), "direction": made.direction}
    checkpoints.write_tensors(path, tensors, {"calibration": json.dumps(asdict(made.facts))})


def calibration_of(weights: Path) -> Calibration | None:
    """Return the calibration next to a weights file, or None with a warning if it is for other weights."""
    path = weights.with_name(FILE)
    if not path.is_file():
        return None
    calibration = read_calibration(path)
    if calibration.facts.weights != sha256_of(weights):
        logger.warning(
            "%s is for other weights than %s, so out-of-distribution input is not detected and probabilities are not "
            "calibrated; run `surgfl calibrate`",
            path, weights.name,
        )  # fmt: skip
        return None
    return calibration


def read_calibration(path: Path) -> Calibration:
    """Read a calibration for any weights; errors as in `calibration_of`."""
    tensors, header = checkpoints.stored_weights(path), checkpoints.load_metadata(path).get("calibration", "")
    try:
        facts = parse(Facts, json.loads(header), str(path), error=CheckpointError)
    except (json.JSONDecodeError, RecursionError):
        raise CheckpointError(f"{path}: its header is not a calibration; run `surgfl calibrate` again") from None
    checkpoints.require_finite(tensors, path)
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    axes, size = shapes.get("axes", []), shapes.get("centre", [])
    if len(size) != 1 or shapes.get("direction") != size or len(axes) != 2 or axes[1:] != size or not axes[0]:
        raise CheckpointError(f"{path}: contains tensors of shapes {shapes}; run `surgfl calibrate` again")
    return Calibration(facts, *(tensors[name].float() for name in ("centre", "axes", "direction")))


def certainty_head(card: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the head of the table of `certainty_rows`."""
    first, *controls = card["rates"]
    return "Videos", "Number", f"Warned by {first}", "Single frames", *(f"Warned by {kind}" for kind in controls)


def certainty_rows(card: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return table rows with the warnings per group of videos and kind of features; the first also per frame."""
    first, *controls = card["rates"].values()
    rows = []
    for group, counts in first.items():
        single = f"{100 * counts['frames warned'] / counts['frames']:.0f} %"
        others = [str(kind[group]["warned"]) for kind in controls]
        rows.append((group, str(counts["videos"]), str(counts["warned"]), single, *others))
    return rows


def error_rows(card: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return table rows with the calibration errors before and after, in percent."""
    return [
        (name, str(errors["frames"]), *(f"{100 * errors[when]:.1f} %" for when in ("before", "after")))
        for name, errors in card["errors"].items()
    ]
