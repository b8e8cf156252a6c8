"""Calibrate weights on held-out scenes and measure the error rates, see `core.calibration`.

Scenes of the families `KNOWN` (endoscopes in a body cavity) count as in distribution, whatever else the model was
trained on, since the real frames of its scores show only such scenes. Scenes of `OTHERS` (an eye, a hollow organ) count
as out of distribution. The card also reports simpler features of the same frames as baselines.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.common.machine import hardware
from shared_components.common.progress import follow
from shared_components.core.calibration import (
    ALLOWED,
    FRAMES,
    SIZE,
    Calibration,
    Facts,
    encoder_features,
    pooled,
    resized_frame,
)
from shared_components.core.evaluation import network_input
from shared_components.core.shipped_weights import sha256_of
from shared_components.core.task import current, last_target
from shared_components.core.trained_model import Trained, load_trained, merged_logits
from shared_components.data.classes import coarser_ids
from shared_components.data.samples import LABELLED, Item, Sample, SampleSpec, read_sample, samples
from shared_components.data.transforms import resize_target
from shared_components.federation.runs.provenance import commit
from shared_components.weights.pretraining.stream import held_out
from shared_components.weights.shipping.calibration_fits import (
    TINY,
    calibration_error,
    fitted_temperature,
    reference,
    way,
)
from shared_components.weights.shipping.weights import SPLIT, Tested

Array = np.ndarray
FIRST = 2_600_000  # looks from this number on, which no training draws, none is chosen by, and no card scores
KNOWN, OTHERS = ("random", "surgery"), ("microscope", "flexible")
AXES, RIDGE = 16, 0.1
"""The ridge was chosen of 3 to 0.01 by five folds of looks from `FIRST` + 2000 on, with the weights 774536d0."""
SPARSE = 4  # every n-th row and column of pixels counts for the temperature
MOST_FRAMES = 20  # of a real site, evenly spread, whose probabilities are compared with their labels
SUBSETS = 10  # of a real video's frames, evenly spread, each a video of `FRAMES`


@dataclass(frozen=True)
class Plan:
    """How many videos are rendered of each family: to learn, of known ones to set the limit by, and to test."""

    reference: int = 250
    limit: int = 200
    tested: int = 100
    labelled: int = 12
    """Of each known family, on whose pixels the temperature is fitted; as many others test it."""


ENCODER = "encoder"
LEARNT, LIMIT, OTHER = "known videos", "limit", "eyes and hollow organs"  # groups that the scores are made of


def _measured(network: nn.Module, videos: Sequence[Array]) -> dict[str, Tensor]:
    """Return by kind the pooled maps of videos, uint8 (V, frames, H, W, 3): each (V, frames, 2, D).

    The first kind is shipped; the others are controls: maps that need no network, or are of what it predicts.
    """
    found: dict[str, list[Tensor]] = {}
    for video in follow(videos, "describing videos,"):
        images = torch.cat([resized_frame(frame) for frame in video])
        steps = (images.clamp(0, 1 - 1e-6) * 4).long()  # four of each colour
        place = steps[:, 0] * 16 + steps[:, 1] * 4 + steps[:, 2]
        with torch.no_grad():
            logits = current(network(images.to(next(network.parameters()).device)), 4).float().cpu()
        values = {
            ENCODER: encoder_features(network, images),
            "colours": pooled([images, images.square()]),
            "histogram of colours": pooled([F.one_hot(place, 64).movedim(-1, 1)]),
            "largest probability": pooled([logits.softmax(1).amax(1, keepdim=True)]),
            "energy": pooled([logits.logsumexp(1, keepdim=True)]),
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
    rendered = {LEARNT, LIMIT, OTHER, "unseen", *(f"unseen {family}" for family in OTHERS), *not_surgery()}
    if taken := [site.name for site in real if site.name in rendered]:
        raise ValueError(f"the site {taken[0]!r} has the name of a group of rendered videos; give it another")
    frames = _frames_of(trained, real)  # first: a site that cannot be used ends it before minutes of work
    trained.network.eval()
    groups = {group: _measured(trained.network, videos) for group, videos in _groups(plan, real)}
    temperature, errors = _temperature(trained, plan, frames)
    about = {"weights": sha256_of(weights), "temperature": temperature}
    by_kind = {kind: {group: found[kind] for group, found in groups.items()} for kind in groups[LIMIT]}
    made = {kind: _fitted(found, about) for kind, found in by_kind.items()}
    rates = {kind: _rates(made[kind], found) for kind, found in by_kind.items()}
    card = {
        "command": command, "commit": commit(), "hardware": hardware(), "plan": asdict(plan), "rates": rates,
        "errors": errors, "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    shipped = made[ENCODER]
    return replace(shipped, facts=msgspec.structs.replace(shipped.facts, card=card))


def _groups(plan: Plan, real: Sequence[Tested]) -> Iterator[tuple[str, list[Array]]]:
    """Yield groups of videos, each uint8 (`FRAMES`, H, W, 3), by name: those that the scores are made of come first."""
    start = FIRST
    for group, count in ((LEARNT, plan.reference), (LIMIT, plan.limit), ("unseen", plan.tested)):
        yield group, _rendered(KNOWN, range(start, start + count), group)
        start += count
    yield OTHER, _rendered(OTHERS, range(start, start + plan.reference), OTHER)
    start += plan.reference
    for family in OTHERS:
        yield f"unseen {family}", _rendered([family], range(start, start + plan.tested), family)
    yield from ((name, [np.repeat(frame[None], FRAMES, 0)]) for name, frame in not_surgery().items())
    yield from ((site.name, list(_videos_of(site))) for site in real)


def _rendered(families: Sequence[str], numbers: Iterable[int], what: str) -> list[Array]:
    videos = _looks(families, numbers, what, size=SIZE, spec=LABELLED, count=FRAMES)
    return [np.concatenate([item.images for item in video]) for video in videos]


def _looks(
    families: Sequence[str], numbers: Iterable[int], what: str, *, size: tuple[int, int], spec: SampleSpec, count: int
) -> Iterator[Sequence[Item]]:
    """Yield `count` samples of one video of each look of these families and numbers."""
    looks = [(f"{family}-{number}", number) for number in numbers for family in families]
    for look, number in follow(looks, f"rendering {what},"):
        yield held_out(look, number, size=size, spec=spec, count=count)


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
    """Yield evenly spread frames of a site's test videos, `FRAMES` at a time, up to `SUBSETS` times of each video.

    A video of fewer frames repeats them.
    """
    by_video: dict[str, list[Sample]] = {}
    for sample in samples(tested.site, SPLIT, SampleSpec(())):
        by_video.setdefault(sample.video, []).append(sample)
    for found in by_video.values():
        step = max(1, len(found) // FRAMES)
        for begin in range(0, step, max(1, math.ceil(step / SUBSETS))):
            chosen = islice(cycle(found[begin::step]), FRAMES)
            yield np.concatenate([read_sample(one).images[-1:] for one in chosen])


def _fitted(groups: Mapping[str, Tensor], about: Mapping[str, Any]) -> Calibration:
    """Return the scores of a kind of maps, with their limits and an empty card."""
    learnt, other, limiting = (groups[name].mean(1) for name in (LEARNT, OTHER, LIMIT))  # (V, 2, D)
    centre, axes = reference(learnt[:, 0], axes=AXES)
    direction, offset = way(learnt[:, 1], other[:, 1], ridge=RIDGE)
    usual = float((learnt[:, 1] @ direction).mean()) + offset
    far = _quantile(torch.linalg.vector_norm((limiting[:, 0] - centre) @ axes.T, dim=1))
    along = max(_quantile(limiting[:, 1] @ direction + offset) - usual, TINY)
    facts = Facts(**about, offset=(offset - usual) / along, limit=1.0, limit_of_few=1.0, card={})
    made = Calibration(facts, centre, axes / far, direction / along)
    limits = [_quantile(_scores(made, videos)) for videos in (groups[LIMIT], groups[LIMIT][:, :1])]
    return replace(made, facts=msgspec.structs.replace(facts, limit=limits[0], limit_of_few=limits[1]))


def _scores(made: Calibration, videos: Tensor) -> Tensor:
    """Return the scores (V,) of videos (V, frames, 2, D)."""
    return torch.tensor([made.score(video) for video in videos])


def _quantile(values: Tensor) -> float:
    """Return the least of the values that no more than `ALLOWED` of them are above."""
    return float(np.quantile(values.numpy(), 1 - ALLOWED, method="higher"))


def _rates(made: Calibration, groups: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """Return of each group that nothing was made of how many videos are above the limit."""
    found = {}
    for group, videos in groups.items():
        if group not in (LEARNT, LIMIT, OTHER):
            scores, single = _scores(made, videos), _scores(made, videos.flatten(0, 1)[:, None])
            found[group] = {
                "videos": len(scores), "warned": int((scores > made.facts.limit).sum()),
                "median": round(float(scores.median()), 2),
                "frames": len(single), "frames warned": int((single > made.facts.limit_of_few).sum()),
            }  # fmt: skip
    return found


def _frames_of(trained: Trained, real: Sequence[Tested]) -> dict[str, tuple[tuple[str, ...], list[Sample]]]:
    """Return the classes and some test frames of each real site that has labels."""
    found = {}
    for one in real:
        if one.site.classes and one.site.task in ("", "segmentation"):
            if coarser_ids(trained.task.card.outputs, one.site.classes) is None:
                raise ValueError(f"{one.name}: has classes that the model's cannot be merged to; leave it out")
            listed = samples(one.site, SPLIT, trained.task.spec)
            found[one.name] = (one.site.classes, listed[:: -(-len(listed) // MOST_FRAMES)])
    return found


def _temperature(
    trained: Trained, plan: Plan, real: Mapping[str, tuple[tuple[str, ...], list[Sample]]]
) -> tuple[float, dict[str, dict[str, float]]]:
    """Return the temperature, and the calibration error before and after, on unseen looks and at real sites."""
    first, last = FIRST + plan.reference, FIRST + plan.reference + plan.limit  # of looks that set the limit, and test
    learnt = trained.task.card.outputs
    temperature = fitted_temperature(*_pixels(trained, _labelled(trained, range(first, first + plan.labelled))))
    tests = {"unseen": (learnt, _labelled(trained, range(last, last + plan.labelled)))}
    tests |= {name: (classes, [read_sample(sample) for sample in frames]) for name, (classes, frames) in real.items()}
    errors = {}
    for name, (classes, items) in tests.items():
        ids = coarser_ids(learnt, classes)
        assert ids is not None
        logits, labels = _pixels(trained, items)
        before, after = (
            calibration_error(merged_logits(logits[..., None, None] / by, ids)[..., 0, 0], labels)
            for by in (1.0, temperature)
        )
        errors[name] = {"frames": len(items), "before": round(before, 4), "after": round(after, 4)}
    return temperature, errors


def _labelled(trained: Trained, numbers: Iterable[int]) -> list[Item]:
    videos = _looks(KNOWN, numbers, "labelled frames", size=trained.size, spec=trained.task.spec, count=2)
    return list(chain.from_iterable(videos))


def _pixels(trained: Trained, items: Sequence[Item]) -> tuple[Tensor, Tensor]:
    """Return logits (N, C) and labels (N,) of every `SPARSE`-th pixel each way, at the network's own size."""
    logits, labels = [], []
    with torch.no_grad():
        for item in follow(items, "comparing probabilities,"):
            image = network_input(item.images, *trained.size).to(next(trained.network.parameters()).device)
            found = current(trained.task.predict(trained.network, {"image": image}), 4)[0].float().cpu()
            truth = torch.from_numpy(resize_target(last_target(item, "label"), *found.shape[1:]))
            logits.append(found[:, ::SPARSE, ::SPARSE].flatten(1).T)  # (C, h, w) -> (h*w, C)
            labels.append(truth[::SPARSE, ::SPARSE].flatten().long())
    return torch.cat(logits), torch.cat(labels)
