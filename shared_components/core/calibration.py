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
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
import torch
from msgspec import Meta
from scipy.optimize import minimize_scalar
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

logger = logging.getLogger(__name__)
FILE = "calibration.safetensors"
SIZE = (96, 128)
"""(height, width) at which frames are looked at for the score: a quarter of the shipped weights' own size."""
FRAMES = 4
"""From as many frames on a video is compared with `limit`; fewer vary more, and have `limit_of_few`."""
GRID, MIDDLE = (3, 4), [5, 6]  # cells of a frame, and the middle ones by number
TINY = 1e-6
ALLOWED = 0.01
"""Share of the videos that set the limit which may be above it."""
COLDEST, HOTTEST = 0.05, 20.0
BINS = 15

Limit = Annotated[float, Meta(gt=0, le=1e9)]


@runtime_checkable
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
    if not isinstance(network, Encoding):
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


def reference(videos: Tensor, *, axes: int) -> tuple[Tensor, Tensor]:
    """Return centre (D,) and axes (K, D) of videos (V, D), one row each.

    The K first principal axes, with variances that are shrunk towards their mean as Ledoit and Wolf (2004) do.
    """
    centre = videos.mean(0)
    rows = (videos - centre).double()
    _, lengths, directions = torch.linalg.svd(rows, full_matrices=False)
    kept = min(axes, len(videos) - 1, videos.shape[1])
    places = rows @ directions[:kept].T  # (V, K)
    variances = lengths[:kept].square() / len(videos)
    share = _shrinkage(places, variances)
    shrunk = (1 - share) * variances + share * variances.mean()
    return centre, (directions[:kept] / shrunk.sqrt()[:, None]).float()


def _shrinkage(places: Tensor, variances: Tensor) -> float:
    """Return Ledoit and Wolf's share of the scaled identity, 0..1, of centred places (V, K) along principal axes."""
    V = len(places)
    apart = (variances - variances.mean()).square().sum()
    products = places[:, :, None] * places[:, None]  # (V, K, K)
    error = (products - torch.diag(variances)).square().sum() / V**2
    return float((error / apart).clamp(0, 1)) if apart > 0 else 1.0


def way(known: Tensor, others: Tensor, *, ridge: float) -> tuple[Tensor, float]:
    """Return direction (D,) and offset by which known videos (V, D) are near -1, and others (W, D) near 1.

    It is the ridge regression of these numbers on channels that known videos give mean 0 and variance 1.
    """
    mean, spread = known.mean(0).double(), known.double().std(0, correction=0) + TINY
    rows = (torch.cat([known, others]).double() - mean) / spread
    sides = torch.cat([-torch.ones(len(known)), torch.ones(len(others))]).double()
    middle, level = rows.mean(0), sides.mean()
    moments = (rows - middle).T @ (rows - middle) / len(rows) + ridge * torch.eye(rows.shape[1])
    found = torch.linalg.solve(moments, (rows - middle).T @ (sides - level) / len(rows))
    direction = found / spread
    return direction.float(), float(level - found @ middle - direction @ mean)


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature of the least cross-entropy of logits (N, C) and labels (N,), within the possible."""
    logits, labels = logits.double(), labels.long()

    def entropy(log: float) -> float:
        return float(F.cross_entropy(logits / np.exp(log), labels))

    return float(np.exp(minimize_scalar(entropy, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded").x))


def calibration_error(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> float:
    """Return the expected calibration error (Guo et al., 2017) of logits (N, C) and labels (N,), 0..1.

    The difference of confidence and accuracy in `BINS` bins of confidence, equally wide, weighted by their pixels.
    """
    sure, answer = (logits / temperature).softmax(1).max(1)
    bins = (sure * BINS).ceil().long().clamp(1, BINS) - 1
    difference = sure.double() - (answer == labels).double()
    return float(torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, difference).abs().sum() / len(labels))


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
