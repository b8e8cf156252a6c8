"""Depth estimation: the distance of every pixel from the camera, in millimetres; unknown depth is ignored.

The loss is the root of the scale-invariant logarithmic error of Eigen et al. (NeurIPS 2014, Eq. 4) plus an absolute
error. Eigen et al. compute it per image (``pooling="image"``); the default pools all pixels of a batch. The metrics
follow Eigen et al. as used on SCARED; two metrics are also computed after median scaling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from shared_components.common.drawing.sheets import Sheet
from shared_components.core import task as tasks
from shared_components.core.card import Card, Metric
from shared_components.core.prompting import Prompting, inputs_of, prompting_of
from shared_components.core.prompts import Rule, of_clips, whole_frames
from shared_components.core.ranges import LARGEST, FromZero, Share
from shared_components.core.task import Array, Batch, Frames, Interval, OneOutput, last_frame, last_target
from shared_components.data.files.images import depth_values
from shared_components.data.samples import Item, Padding, SampleSpec, TargetsOf

MOST = 255.0  # mm: maximum depth of the sigmoid activation, as released by SurgFed
LEAST = 1e-3  # mm: minimum depth in logarithms and ratios; smaller depths are clamped
Scale = Annotated[float, Meta(ge=LEAST, le=LARGEST, description=f"it is a number, at least {LEAST}")]
METRICS = (
    Metric("rmse", "RMSE", False, "mm", digits=2),
    Metric("mae", "MAE", False, "mm", digits=2),
    Metric("abs_rel", "Abs rel", False),
    Metric("sq_rel", "Sq rel", False, "mm", digits=2),
    Metric("rmse_log", "RMSE log", False),
    Metric("delta1", "δ < 1.25", True),
    Metric("delta2", "δ < 1.25²", True),
    Metric("delta3", "δ < 1.25³", True),
    Metric("rmse_scaled", "scaled RMSE", False, "mm", digits=2),
    Metric("abs_rel_scaled", "scaled abs rel", False),
    Metric("rmse_pixels", "RMSE 0-255", False, "pix.", digits=2, in_delta=True),
)
DEFINITIONS = {
    "rmse": "root mean squared error in mm over pixels of known depth, per frame; mean over frames",
    "mae": "mean absolute error in mm, per frame",
    "abs_rel": "mean of |prediction - truth| / truth, per frame",
    "sq_rel": "mean of (prediction - truth)^2 / truth in mm, per frame",
    "rmse_log": "root of the mean of (ln(prediction) - ln(truth))^2, per frame",
    "delta1": "share of pixels with max(prediction / truth, truth / prediction) < 1.25, per frame",
    "delta2": "as delta1, below 1.25 squared",
    "delta3": "as delta1, below 1.25 cubed",
    "rmse_scaled": "rmse of the prediction times median(truth) / median(prediction) of the frame",
    "abs_rel_scaled": "abs_rel of the same scaled prediction",
    "rmse_pixels": "RMSE after min-max scaling of prediction and truth to 0..255 in each frame, as SurgFed",
    "unknown depth": "0 in the file; such pixels, and frames without known pixels, are left out",
    "resolution": "that of the depth file; the prediction is enlarged bilinearly",
}


def build(
    *,
    classes: Sequence[str] = (),
    scale: Scale = 100.0,
    log_error: FromZero = 1.0,
    variance: Share = 0.5,
    absolute: FromZero = 0.1,
    pooling: Literal["batch", "image"] = "batch",
    activation: Literal["softplus", "sigmoid"] = "softplus",
    frames: Frames = 1,
    interval: Interval = 0.0,
    padding: Padding = "first",
    targets_of: TargetsOf = "last",
    prompts: Literal["none", "first", "every_second"] = "none",
    evaluation_prompts: Rule = "first",
) -> Depth:
    """Return the task.

    Args:
        classes: A site's class names; not used.
        scale: Millimetres per unit of the network's output and the loss; the usual working distance.
        log_error: Loss weight of the scale-invariant logarithmic error.
        variance: Lambda of that error; 0: root mean squared log error, 1: ignore the scale.
        absolute: Loss weight of the mean absolute error, in units of ``scale``.
        pooling: Compute the logarithmic error per ``batch`` or per ``image``.
        activation: Depth in mm from output x: ``softplus``, scale x softplus(x), or ``sigmoid``, 255 x sigmoid(x).
        frames, interval, padding, targets_of: Of a sample's clip, see `samples.SampleSpec`.
        prompts: Frames whose whole is the box that the network is given in training, see `prompts.Prompts`; `none`: no
            box. `evaluation_prompts`: The same in evaluation, which is of whole videos then.

    SurgFed's loss, L1, is log_error: 0 and absolute: 1.
    """
    spec = tasks.sample_spec(
        "depth", ("depth",), frames=frames, interval=interval, padding=padding, targets_of=targets_of
    )
    prompting = prompting_of("depth", spec, prompts=prompts, evaluation_prompts=evaluation_prompts)
    return Depth(scale, log_error, variance, absolute, pooling, activation, spec, prompting)


@dataclass(frozen=True)
class Depth(OneOutput):
    """See `task.Task`. A prediction is float32 (H, W) in mm; a score is a number per metric (NaN: no known depth)."""

    scale: float
    log_error: float
    variance: float
    absolute: float
    pooling: str
    activation: str
    spec: SampleSpec
    prompting: Prompting | None = None
    channels = 1
    metrics = METRICS

    @property
    def definitions(self) -> Mapping[str, str]:
        return DEFINITIONS | ({} if self.prompting is None else {"prompts": self.prompting.definition})

    @property
    def card(self) -> Card:
        return Card("depth", ("mm",), inputs_of(self.prompting), frames=self.spec.frames)

    def add_randomness(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Add "boxes" (B, T, 1, 4) to a batch with depth if the network takes prompts."""
        if self.prompting is None or "depth" not in batch:
            return batch
        return {**batch, "boxes": self.prompting.in_training(self.boxes(batch), batch["image"], generator)}

    def boxes(self, targets: Mapping[str, Tensor]) -> Tensor:
        """Return a box around the whole frame for every frame: (B, T, 1, 4)."""
        *frames, height, width = of_clips(targets["depth"]).shape
        return whole_frames(*frames, size=(height, width), device=targets["depth"].device)

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return positive depths in mm from the network's one channel: (B, H, W), or (B, T, H, W) for all frames."""
        raw = tasks.outputs_of(network, batch)[..., 0, :, :].float()  # (B, 1, H, W) -> (B, H, W)
        return MOST * raw.sigmoid() if self.activation == "sigmoid" else self.scale * F.softplus(raw)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the loss of depths in mm over pixels of known depth ("depth" above 0).

        It covers all frames if outputs and depth have all frames, else the current frame. Images without known depth
        are ignored; the loss is 0 if no image has known depth.
        """
        true = batch["depth"].to(outputs)
        outputs, truth = tasks.same_frames(outputs.unsqueeze(-3), true)  # (N, 1, H, W), (N, H, W)
        outputs = outputs[:, 0]
        parts = zip(outputs, truth, strict=True) if self.pooling == "image" else [(outputs, truth)]
        losses = [self._loss(p[t > 0], t[t > 0]) for p, t in parts if bool((t > 0).any())]
        return torch.stack(losses).mean() if losses else outputs.sum() * 0

    def _loss(self, predicted: Tensor, true: Tensor) -> Tensor:
        """Return the loss of (N,) known depths in mm."""
        ratio = predicted.clamp_min(LEAST).log() - true.clamp_min(LEAST).log()
        # square root of Eq. (4) of Eigen et al.; clamped, since its gradient is infinite at a perfect prediction
        spread = (ratio.square().mean() - self.variance * ratio.mean().square()).clamp_min(1e-12).sqrt()
        return self.log_error * spread + self.absolute * (predicted - true).abs().mean() / self.scale

    def postprocess(self, outputs: Tensor, batch: Batch, sizes: Sequence[tuple[int, int]]) -> list[Array]:
        """Return float32 mm of the current frame, resized bilinearly."""
        depths = tasks.current(outputs, 3).float().cpu().numpy()
        return [
            depth if depth.shape == tuple(size) else cv2.resize(depth, (size[1], size[0]))
            for depth, size in zip(depths, sizes, strict=True)
        ]

    def score(self, answer: Array, item: Item, *, quick: bool) -> dict[str, float]:
        truth = last_target(item, "depth")
        known = truth > 0
        if not known.any():
            return dict.fromkeys((metric.name for metric in METRICS), math.nan)
        # NaN would exclude the frame from the means, so it becomes the maximum depth
        predicted = np.nan_to_num(answer[known].astype(np.float64), nan=MOST, posinf=MOST).clip(LEAST)
        true = truth[known].astype(np.float64)
        scaled = predicted * (np.median(true) / np.median(predicted))
        plain, after = _errors(predicted, true), _errors(scaled, true)
        return plain | {
            "rmse_scaled": after["rmse"],
            "abs_rel_scaled": after["abs_rel"],
            "rmse_pixels": float(np.sqrt(np.mean((_stretched(predicted) - _stretched(true)) ** 2))),
        }

    def files(self, answer: Array, image: Array) -> dict[str, Array]:
        """Return the depth as a 16-bit image (256 per mm), and as a colour map with a scale bar."""
        from shared_components.reporting.overlays import depth_overlay

        return {"depth": depth_values(answer), "overlays": depth_overlay(image, answer)}

    def sheet(self, answer: Array, item: Item) -> Sheet:
        """Draw the frame, and colour maps of ground truth, prediction and error."""
        from shared_components.reporting.overlays import depth_sheet

        return depth_sheet(last_frame(item), last_target(item, "depth"), answer)


def _stretched(depths: Array) -> Array:
    """Return (N,) depths min-max scaled to 0..255; 0 if all are equal."""
    span = np.ptp(depths)
    return 255 * (depths - depths.min()) / span if span > 0 else np.zeros_like(depths)


def _errors(predicted: Array, true: Array) -> dict[str, float]:
    """Return the error metrics of (N,) positive depths."""
    difference = np.abs(predicted - true)
    ratio = np.maximum(predicted / true, true / predicted)
    return {
        "rmse": float(np.sqrt(np.mean(difference**2))),
        "mae": float(difference.mean()),
        "abs_rel": float((difference / true).mean()),
        "sq_rel": float((difference**2 / true).mean()),
        "rmse_log": float(np.sqrt(np.mean((np.log(predicted) - np.log(true)) ** 2))),
        **{f"delta{power}": float((ratio < 1.25**power).mean()) for power in (1, 2, 3)},
    }
