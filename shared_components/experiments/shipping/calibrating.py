"""Calibrate weights on scenes that they have not seen, and measure how often that is wrong, see `core.calibration`.

What a model knows are scenes of endoscopes in a body cavity, of the families `KNOWN`, whatever else it was trained on:
real frames that its scores were measured on are of these alone. Beside the encoder's score stand simpler ones of the
same frames, so that the card says what the encoder is worth.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.common.machine import hardware
from shared_components.common.progress import follow
from shared_components.core.calibration import (
    FRAMES,
    SIZE,
    Calibration,
    Facts,
    calibration_error,
    described,
    fitted_temperature,
    reference,
    seen,
)
from shared_components.core.evaluation import network_input
from shared_components.core.shipped_weights import sha256_of
from shared_components.core.task import Task, current, last_target, make_task
from shared_components.core.trained_model import Trained, load_trained, read_as
from shared_components.data.samples import LABELLED, Item, Sample, SampleSpec, read_sample, samples
from shared_components.data.transforms import resize_target
from shared_components.experiments.pretraining.stream import held_out
from shared_components.experiments.shipping.weights import SPLIT, Tested
from shared_components.federation.provenance import commit

Array = np.ndarray
FIRST = 2_500_000  # looks from this number on, which no training draws, none is chosen by, and no card scores
KNOWN, OTHERS = ("random", "surgery"), ("microscope", "flexible")
AXES = 16
ALLOWED = 0.01  # of the videos by which the limit is set
SPARSE = 4  # every n-th row and column of pixels counts for the temperature
SUBSETS = 10  # of a real video's frames, evenly spread, each a video of `FRAMES`


@dataclass(frozen=True)
class Plan:
    """How many videos are rendered of each family: to know, to set the limit by, and to test."""

    reference: int = 100
    limit: int = 100
    tested: int = 60
    labelled: int = 15
    """Of each known family, on whose pixels the temperature is fitted; as many others test it."""


ENCODER = "encoder"


def _measured(network: nn.Module, videos: Sequence[Array]) -> dict[str, Tensor]:
    """Return by kind what is measured of videos, uint8 (V, frames, H, W, 3): each (V, frames, D).

    The first kind is shipped; the others are controls, which need no network, or what it predicts.
    """
    found: dict[str, list[Tensor]] = {}
    for video in videos:
        images = torch.cat([seen(frame) for frame in video])
        steps = (images.clamp(0, 1 - 1e-6) * 4).long()  # four of each colour
        place = (steps[:, 0] * 16 + steps[:, 1] * 4 + steps[:, 2]).flatten(1)
        with torch.no_grad():
            logits = current(network(images.to(next(network.parameters()).device)), 4).float().cpu()
        values = {
            ENCODER: described(network, images),
            "mean and deviation of colours": torch.cat([images.mean((2, 3)), images.std((2, 3))], 1),
            "histogram of colours": F.one_hot(place, 64).float().mean(1).sqrt(),
            "largest probability": logits.softmax(1).amax(1).mean((1, 2))[:, None],
            "energy": logits.logsumexp(1).mean((1, 2))[:, None],
        }
        for kind, value in values.items():
            found.setdefault(kind, []).append(value)
    return {kind: torch.stack(values) for kind, values in found.items()}


def calibrate(
    weights: Path, *, bundle: str, real: Sequence[Tested] = (), plan: Plan = Plan(), command: str = ""
) -> Calibration:
    """Return the calibration of weights; they are not changed.

    Args:
        weights: A checkpoint of segmentation by frames or clips.
        bundle: As of `load_trained`.
        real: Sites whose test frames are measured, too; nothing follows from them.

    Raises:
        ValueError: The weights have learnt something else, or a site cannot be used.
    """
    began, trained = time.monotonic(), load_trained(weights, bundle=bundle)
    task = trained.task
    if task.card.kind != "segmentation" or task.prompting is not None:
        raise ValueError(f"{weights}: only models of segmentation that need no box are calibrated")
    trained.network.eval()
    groups = {group: _measured(trained.network, videos) for group, videos in _groups(plan, real)}
    rates, made = {}, {}
    for kind in groups["reference"]:
        made[kind], rates[kind] = _by_kind({group: found[kind] for group, found in groups.items()})
    temperature, errors = _temperature(trained, plan, real)
    centre, axes, limit, few = made[ENCODER]
    card = {
        "command": command, "commit": commit(), "hardware": hardware(), "plan": asdict(plan), "rates": rates,
        "errors": errors, "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    return Calibration(Facts(sha256_of(weights), temperature, limit, few, card), centre, axes)


def _groups(plan: Plan, real: Sequence[Tested]) -> Iterator[tuple[str, list[Array]]]:
    """Yield groups of videos, each uint8 (`FRAMES`, H, W, 3), by name."""
    start = FIRST
    for group, count in (("reference", plan.reference), ("limit", plan.limit), ("unseen", plan.tested)):
        yield group, _rendered(KNOWN, range(start, start + count), group)
        start += count
    for family in OTHERS:
        yield f"unseen {family}", _rendered([family], range(start, start + plan.tested), family)
    yield from ((name, [np.repeat(frame[None], FRAMES, 0)]) for name, frame in not_surgery().items())
    yield from ((site.name, list(_videos_of(site))) for site in real)


def _rendered(families: Sequence[str], numbers: Iterable[int], what: str) -> list[Array]:
    looks = [(f"{family}-{number}", number) for number in numbers for family in families]
    return [
        np.concatenate([item.images for item in held_out(look, number, size=SIZE, spec=LABELLED, count=FRAMES)])
        for look, number in follow(looks, f"rendering {what},")
    ]


def not_surgery() -> dict[str, Array]:
    """Return frames (192, 256, 3) that show no scene at all: grey, noise, and a house under the sun."""
    house = np.full((192, 256, 3), (120, 180, 240), np.uint8)
    cv2.rectangle(house, (0, 130), (255, 191), (60, 140, 50), -1)
    cv2.circle(house, (210, 40), 22, (250, 220, 60), -1)
    cv2.rectangle(house, (60, 90), (150, 160), (200, 190, 170), -1)
    cv2.fillPoly(house, [np.array([(50, 92), (160, 92), (105, 45)])], (150, 60, 40))
    cv2.rectangle(house, (95, 120), (115, 160), (90, 60, 40), -1)
    noise = np.random.default_rng(0).integers(0, 256, (192, 256, 3), dtype=np.uint8)
    return {"a grey frame": np.full_like(house, 128), "noise": noise, "a drawing of a house": house}


def _videos_of(tested: Tested) -> Iterator[Array]:
    """Yield evenly spread frames of a site's test videos, `FRAMES` at a time, up to `SUBSETS` times of each video."""
    by_video: dict[str, list[Sample]] = {}
    for sample in samples(tested.site, SPLIT, SampleSpec(())):
        by_video.setdefault(sample.video, []).append(sample)
    for found in by_video.values():
        step = max(1, len(found) // FRAMES)
        for begin in range(0, step, max(1, step // SUBSETS)):
            yield np.concatenate([read_sample(one).images[-1:] for one in found[begin::step][:FRAMES]])


def _by_kind(groups: Mapping[str, Tensor]) -> tuple[tuple[Tensor, Tensor, float, float], dict[str, dict[str, float]]]:
    """Return centre, axes and both limits of a kind; and of every other group how many videos are above the limit."""
    centre, axes = reference(groups["reference"].mean(1), axes=AXES)

    def scores(videos: Tensor) -> Array:
        return torch.linalg.vector_norm((videos.mean(1) - centre) @ axes.T, dim=1).numpy()

    limit, few = (
        float(np.quantile(scores(videos), 1 - ALLOWED, method="higher"))
        for videos in (groups["limit"], groups["limit"][:, :1])
    )
    found = {}
    for group, videos in groups.items():
        if group not in ("reference", "limit"):
            above = scores(videos)
            found[group] = {
                "videos": len(above), "warned": int((above > limit).sum()), "median": round(float(np.median(above)), 2),
                "of single frames": round(float((scores(videos.flatten(0, 1)[:, None]) > few).mean()), 4),
            }  # fmt: skip
    return (centre, axes, limit, few), found


def _temperature(trained: Trained, plan: Plan, real: Sequence[Tested]) -> tuple[float, dict[str, dict[str, float]]]:
    """Return the temperature, and the calibration error before and after, on unseen looks and at real sites."""
    first, last = FIRST + plan.reference, FIRST + plan.reference + plan.limit
    fitted = _labelled(trained, range(first, first + plan.labelled))
    temperature = fitted_temperature(*_pixels(trained.network, trained.task, trained.size, fitted))
    tests = {"unseen": (trained.task, _labelled(trained, range(last, last + plan.labelled)))}
    for one in real:
        if one.site.classes and one.site.task in ("", "segmentation"):
            task = make_task("segmentation", classes=one.site.classes)
            tests[one.name] = (task, [read_sample(s) for s in samples(one.site, SPLIT, trained.task.spec)])
    errors = {}
    for name, (task, items) in tests.items():
        said = {}
        for when, by in (("before", 1.0), ("after", temperature)):
            network = read_as(Cooled(trained.network, by), trained.task.card.outputs, task.card.outputs)
            said[when] = round(calibration_error(*_pixels(network, trained.task, trained.size, items)), 4)
        errors[name] = {"frames": len(items), **said}
    return temperature, errors


def _labelled(trained: Trained, numbers: Iterable[int]) -> list[Item]:
    spec = trained.task.spec
    looks = [(f"{family}-{number}", number) for number in numbers for family in KNOWN]
    return [
        item
        for look, number in follow(looks, "rendering labelled frames,")
        for item in held_out(look, number, size=trained.size, spec=spec, count=2)
    ]


class Cooled(nn.Module):
    """A network whose logits are divided by a temperature."""

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.network, self.temperature = network, temperature

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.network(*inputs) / self.temperature


def _pixels(network: nn.Module, task: Task, size: tuple[int, int], items: Sequence[Item]) -> tuple[Tensor, Tensor]:
    """Return logits (N, C) and labels (N,) of every `SPARSE`-th pixel each way, at the network's own size."""
    logits, labels = [], []
    with torch.no_grad():
        for item in follow(items, "comparing probabilities,"):
            found = current(task.predict(network, {"image": network_input(item.images, *size)}), 4)[0].float()
            truth = torch.from_numpy(resize_target(last_target(item, "label"), *found.shape[1:]))
            logits.append(found[:, ::SPARSE, ::SPARSE].flatten(1).T)  # (C, h, w) -> (h*w, C)
            labels.append(truth[::SPARSE, ::SPARSE].flatten())
    return torch.cat(logits), torch.cat(labels)
