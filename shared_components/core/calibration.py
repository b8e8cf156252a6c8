"""How sure a model may be: whether its input is unlike what it has learnt, and the temperature of its probabilities.

`calibration.safetensors` lies beside weights, is of them alone by their hash, and is made by `surgfl calibrate`. The
score is of the encoder's maps, averaged over the frames of a video, and the larger of two numbers: the Mahalanobis
distance (Lee et al., NeurIPS 2018) from known videos, and the place along a direction from known videos to some that
are others, found by ridge regression. The temperature (Guo et al., ICML 2017) divides logits before the softmax, which
changes no mask.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.common.schema import Schema, parse
from shared_components.core.evaluation import network_input
from shared_components.core.shipped_weights import sha256_of
from shared_components.networks.checkpoints import (
    CheckpointError,
    load_metadata,
    require_finite,
    stored_weights,
    write_tensors,
)
from shared_components.networks.protocols import provides

logger = logging.getLogger(__name__)
FILE = "calibration.safetensors"
SIZE = (96, 128)
"""(height, width) at which frames are looked at for the score: a quarter of the shipped weights' own size."""
FRAMES = 4
"""From as many frames on a video is compared with `limit`; fewer vary more, and have `limit_of_few`."""
GRID, MIDDLE = (3, 4), [5, 6]  # cells of a frame, and the middle ones by number
ALLOWED = 0.01
"""Share of the videos that set the limit which may be above it."""
COLDEST, HOTTEST = 0.05, 20.0

Limit = Annotated[float, Meta(gt=0, le=1e9)]


class Encoding(Protocol):
    """A network whose encoder gives maps (B, C, h, w) of images (B, 3, H, W)."""

    encoder: nn.Module


class Facts(Schema, frozen=True):
    """What a calibration says beside its tensors; `weights` is the SHA-256 of the file that it is of."""

    weights: str
    temperature: Annotated[float, Meta(ge=COLDEST, le=HOTTEST)]
    offset: Annotated[float, Meta(ge=-1e9, le=1e9)]
    limit: Limit
    limit_of_few: Limit
    card: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Calibration:
    """A model's; see the module. Both scores are in units of their own 99th percentile of known videos.

    Attributes:
        centre: Mean of the known videos' maps, (D,).
        axes: The length of ``axes @ (mean - centre)`` is the distance, (K, D).
        direction: ``direction @ contrast + offset`` is the place of a video on the way to others, (D,).
    """

    facts: Facts
    centre: Tensor
    axes: Tensor
    direction: Tensor

    def score(self, described: Tensor) -> float:
        """Return how unlike frames (N, 2, D), as `described`, are: of their mean, the larger of both; usually below 1.

        Raises:
            CheckpointError: They are of another network's maps.
        """
        if described.shape[2:] != self.centre.shape:
            raise CheckpointError(
                f"{FILE} is of a network whose maps have {len(self.centre)} channels, and this one's have "
                f"{described.shape[2]}; run `surgfl calibrate` again"
            )
        mean, contrast = described.mean(0)
        distance = torch.linalg.vector_norm(self.axes @ (mean - self.centre))
        return max(float(distance), float(self.direction @ contrast) + self.facts.offset)

    def limit(self, frames: int) -> float:
        """Return the score above which so many frames are unlike what the model has learnt."""
        return self.facts.limit if frames >= FRAMES else self.facts.limit_of_few


def seen(frame: np.ndarray) -> Tensor:
    """Return a frame, uint8 RGB (H, W, 3), as it is looked at: (1, 3, *SIZE) in [0, 1]."""
    return network_input(frame[None], *SIZE)


def described(network: nn.Module, images: Tensor) -> Tensor:
    """Describe images (N, 3, H, W), as `seen`, by the encoder's maps: float32 (N, 2, D) on the processor, see `pooled`.

    Raises:
        ValueError: The network has no such encoder.
    """
    if not provides(network, Encoding):
        raise ValueError(f"{type(network).__name__} has no encoder of frames, by which unlike input is told")
    with torch.no_grad():
        maps = network.encoder(images.to(next(network.parameters()).device))
    return pooled([maps] if isinstance(maps, Tensor) else maps)


def pooled(maps: Sequence[Tensor]) -> Tensor:
    """Return of maps (N, C, h, w), joined, the mean, and the contrast of the frame's middle to its border: (N, 2, D).

    The middle is two of three by four cells: an eye and a hollow organ have something round there.
    """
    cells = torch.cat([F.adaptive_avg_pool2d(one.float(), GRID).flatten(2) for one in maps], 1).cpu()  # (N, D, 12)
    middle = cells[..., MIDDLE].mean(2)
    border = (cells.sum(2) - len(MIDDLE) * middle) / (cells.shape[2] - len(MIDDLE))
    return torch.stack([cells.mean(2), middle - border], 1)


def write_calibration(path: Path, made: Calibration) -> None:
    """Write a calibration, see `checkpoints.write_tensors`."""
    facts = made.facts
    header = {name: getattr(facts, name) for name in facts.__struct_fields__}
    write_tensors(
        path,
        {"centre": made.centre, "axes": made.axes.contiguous(), "direction": made.direction},
        {"calibration": json.dumps(header)},
    )


def calibration_of(weights: Path) -> Calibration | None:
    """Return the calibration that lies beside weights; None, with a warning, where it is not of them.

    Raises:
        CheckpointError: It is damaged, or holds what a calibration does not.
    """
    path = weights.with_name(FILE)
    if not path.is_file():
        return None
    found = read_calibration(path)
    if found.facts.weights != sha256_of(weights):
        logger.warning(
            "%s is of other weights than %s: nothing is said of unlike input, and probabilities are the network's "
            "own; run `surgfl calibrate`",
            path, weights.name,
        )  # fmt: skip
        return None
    return found


def read_calibration(path: Path) -> Calibration:
    """Read a calibration, of whatever weights; errors as of `calibration_of`."""
    tensors, said = stored_weights(path), load_metadata(path).get("calibration", "")
    try:
        facts = parse(Facts, json.loads(said), str(path), error=CheckpointError)
    except (json.JSONDecodeError, RecursionError):
        raise CheckpointError(f"{path}: its header is no calibration; run `surgfl calibrate` again") from None
    require_finite(tensors, path)
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    axes, size = shapes.get("axes", []), shapes.get("centre", [])
    if len(size) != 1 or shapes.get("direction") != size or len(axes) != 2 or axes[1:] != size or not axes[0]:
        raise CheckpointError(
            f"{path}: holds tensors of the shapes {shapes}, and a calibration has centre and direction [D] and axes "
            "[K, D]; run `surgfl calibrate` again"
        )
    return Calibration(facts, *(tensors[name].float() for name in ("centre", "axes", "direction")))


def certainty_head(card: Mapping[str, Any]) -> tuple[str, ...]:
    """Head the table of `certainty_rows`."""
    first, *controls = card["rates"]
    return "Videos", "Number", f"Warned by the {first}", "of one frame each", *(f"by {kind}" for kind in controls)


def certainty_rows(card: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return by group of videos how many each kind of maps warns of, as rows of text; the first also of frames."""
    first, *controls = card["rates"].values()
    rows = []
    for group, found in first.items():
        single = f"{100 * found['frames warned'] / found['frames']:.0f} %"
        others = [str(kind[group]["warned"]) for kind in controls]
        rows.append((group, str(found["videos"]), str(found["warned"]), single, *others))
    return rows


def error_rows(card: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the calibration errors before and after as rows of text, in percent."""
    return [
        (name, str(found["frames"]), *(f"{100 * found[when]:.1f} %" for when in ("before", "after")))
        for name, found in card["errors"].items()
    ]
