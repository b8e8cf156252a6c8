"""Calibrate weights on held-out scenes and measure the error rates, see `core.calibration`.

Scenes of the families `KNOWN` (endoscopes in a body cavity) count as in distribution for all weights, since the real
test frames show only such scenes. Scenes of `OTHERS` (an eye, a hollow organ) count as out of distribution. The card
also reports simpler features of the same frames as baselines.
"""

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
from shared_components.data.files.classes import coarser_ids
from shared_components.data.samples import LABELLED, Item, Sample, SampleSpec, read_sample, samples
from shared_components.data.transforms import resize_target
from shared_components.federation.runs.provenance import commit
from shared_components.weights.pretraining.stream import held_out
from shared_components.weights.shipping import calibration_fits as fits
from shared_components.weights.shipping.weights import SPLIT, Tested

Array = np.ndarray
FIRST = 2_600_000  # looks from this number on are not used for training, selection or the card's scores
KNOWN, OTHERS = ("random", "surgery"), ("microscope", "flexible")
AXES, RIDGE = 16, 0.1  # ridge: best of 3 to 0.01 by five folds of looks from `FIRST` + 2000 on, weights 774536d0
SPARSE = 4  # the temperature uses every n-th row and column of pixels
MOST_FRAMES = 20  # maximum number of evenly spread frames per real site for calibration errors
SUBSETS = 10  # maximum number of `FRAMES`-frame videos from each real video
ENCODER = "encoder"
LEARNT, LIMIT, OTHER = "known videos", "limit", "eyes and hollow organs"  # groups that fit the scores


@dataclass(frozen=True)
class Plan:
    """Numbers of rendered videos."""

    reference: int = 250  # known videos, and videos of other families, for the fit
    limit: int = 200  # known videos for the limit
    tested: int = 100  # test videos
    labelled: int = 12  # per known family: videos for the temperature, and as many to test it


def calibrate(
    weights: Path, *, bundle: str, real: Sequence[Tested] = (), plan: Plan = Plan(), command: str = ""
) -> Calibration:
    """Return the calibration of a segmentation checkpoint; `real` sites are measured but do not influence it.

    Raise ValueError if the weights have another task or a site cannot be used.
    """
    began, trained = time.monotonic(), load_trained(weights, bundle=bundle)
    task = trained.task
    if task.card.kind != "segmentation" or task.prompting is not None:
        raise ValueError(f"{weights}: only segmentation models without box prompts can be calibrated")
    rendered = {LEARNT, LIMIT, OTHER, "unseen", *(f"unseen {family}" for family in OTHERS), *not_surgery()}
    if taken := [site.name for site in real if site.name in rendered]:
        raise ValueError(f"site {taken[0]!r} has the name of a group of rendered videos; rename it")
    frames = _real_frames(trained, real)  # checks the sites before minutes of work
    trained.network.eval()
    groups = {group: _features(trained.network, videos) for group, videos in _groups(plan, real)}
    temperature, errors = _temperature(trained, plan, frames)
    about = {"weights": sha256_of(weights), "temperature": temperature}
    by_kind = {kind: {group: features[kind] for group, features in groups.items()} for kind in groups[LIMIT]}
    calibrations = {kind: _fitted(features, about) for kind, features in by_kind.items()}
    card = {
        "command": command, "commit": commit(), "hardware": hardware(), "plan": asdict(plan),
        "rates": {kind: _rates(calibrations[kind], features) for kind, features in by_kind.items()},
        "errors": errors, "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    shipped = calibrations[ENCODER]
    return replace(shipped, facts=msgspec.structs.replace(shipped.facts, card=card))


def _features(network: nn.Module, videos: Sequence[Array]) -> dict[str, Tensor]:
    """Return by kind the pooled features (V, frames, 2, D) of videos, uint8 (V, frames, H, W, 3).

    The first kind is shipped; the others are baselines without a network, or from its predictions.
    """
    by_kind: dict[str, list[Tensor]] = {}
    for video in follow(videos, "describing videos,"):
        images = torch.cat([resized_frame(frame) for frame in video])
        steps = (images.clamp(0, 1 - 1e-6) * 4).long()  # four levels per colour
        bins = steps[:, 0] * 16 + steps[:, 1] * 4 + steps[:, 2]
        with torch.no_grad():
            logits = current(network(images.to(next(network.parameters()).device)), 4).float().cpu()
        features = {
            ENCODER: encoder_features(network, images),
            "colours": pooled([images, images.square()]),
            "histogram of colours": pooled([F.one_hot(bins, 64).movedim(-1, 1)]),
            "largest probability": pooled([logits.softmax(1).amax(1, keepdim=True)]),
            "energy": pooled([logits.logsumexp(1, keepdim=True)]),
        }
        for kind, value in features.items():
            by_kind.setdefault(kind, []).append(value)
    return {kind: torch.stack(values) for kind, values in by_kind.items()}


def _groups(plan: Plan, real: Sequence[Tested]) -> Iterator[tuple[str, list[Array]]]:
    """Yield groups of videos, each uint8 (`FRAMES`, H, W, 3), by name."""
    start = FIRST
    for group, count in ((LEARNT, plan.reference), (LIMIT, plan.limit), ("unseen", plan.tested)):
        yield group, _rendered(KNOWN, range(start, start + count), group)
        start += count
    yield OTHER, _rendered(OTHERS, range(start, start + plan.reference), OTHER)
    start += plan.reference
    for family in OTHERS:
        yield f"unseen {family}", _rendered([family], range(start, start + plan.tested), family)
    yield from ((name, [np.repeat(frame[None], FRAMES, 0)]) for name, frame in not_surgery().items())
    yield from ((site.name, list(_real_videos(site))) for site in real)


def _rendered(families: Sequence[str], numbers: Iterable[int], what: str) -> list[Array]:
    videos = _looks(families, numbers, what, size=SIZE, spec=LABELLED, count=FRAMES)
    return [np.concatenate([item.images for item in video]) for video in videos]


def _looks(
    families: Sequence[str], numbers: Iterable[int], what: str, *, size: tuple[int, int], spec: SampleSpec, count: int
) -> Iterator[Sequence[Item]]:
    looks = [(f"{family}-{number}", number) for number in numbers for family in families]
    for look, number in follow(looks, f"rendering {what},"):
        yield held_out(look, number, size=size, spec=spec, count=count)


def not_surgery() -> dict[str, Array]:
    """Return frames (192, 256, 3) without surgery: grey, noise, and a house under the sun."""
    house = np.full((192, 256, 3), (120, 180, 240), np.uint8)
    cv2.rectangle(house, (0, 130), (255, 191), (60, 140, 50), -1)
    cv2.circle(house, (210, 40), 22, (250, 220, 60), -1)
    cv2.rectangle(house, (60, 90), (150, 160), (200, 190, 170), -1)
    cv2.fillPoly(house, [np.array([(50, 92), (160, 92), (105, 45)])], (150, 60, 40))
    cv2.rectangle(house, (95, 120), (115, 160), (90, 60, 40), -1)
    noise = np.random.default_rng(0).integers(0, 256, (192, 256, 3), dtype=np.uint8)
    return {"a grey frame": np.full_like(house, 128), "noise": noise, "a drawing of a house": house}


def _real_videos(tested: Tested) -> Iterator[Array]:
    """Yield up to `SUBSETS` sets of `FRAMES` evenly spread frames per test video; short videos repeat frames."""
    by_video: dict[str, list[Sample]] = {}
    for sample in samples(tested.site, SPLIT, SampleSpec(())):
        by_video.setdefault(sample.video, []).append(sample)
    for frames in by_video.values():
        step = max(1, len(frames) // FRAMES)
        for begin in range(0, step, max(1, math.ceil(step / SUBSETS))):
            subset = islice(cycle(frames[begin::step]), FRAMES)
            yield np.concatenate([read_sample(sample).images[-1:] for sample in subset])


def _fitted(groups: Mapping[str, Tensor], about: Mapping[str, Any]) -> Calibration:
    """Fit the scores and limits for one kind of features, with an empty card."""
    known, other, limiting = (groups[name].mean(1) for name in (LEARNT, OTHER, LIMIT))  # (V, 2, D)
    centre, axes = fits.reference(known[:, 0], axes=AXES)
    direction, offset = fits.way(known[:, 1], other[:, 1], ridge=RIDGE)
    usual = float((known[:, 1] @ direction).mean()) + offset
    far = _quantile(torch.linalg.vector_norm((limiting[:, 0] - centre) @ axes.T, dim=1))
    along = max(_quantile(limiting[:, 1] @ direction + offset) - usual, fits.TINY)
    facts = Facts(**about, offset=(offset - usual) / along, limit=1.0, limit_of_few=1.0, card={})
    calibration = Calibration(facts, centre, axes / far, direction / along)
    limits = [_quantile(_scores(calibration, videos)) for videos in (groups[LIMIT], groups[LIMIT][:, :1])]
    return replace(calibration, facts=msgspec.structs.replace(facts, limit=limits[0], limit_of_few=limits[1]))


def _scores(calibration: Calibration, videos: Tensor) -> Tensor:
    """Return the scores (V,) of videos (V, frames, 2, D)."""
    return torch.tensor([calibration.score(video) for video in videos])


def _quantile(values: Tensor) -> float:
    """Return the smallest value such that at most the fraction `ALLOWED` of the values is larger."""
    return float(np.quantile(values.numpy(), 1 - ALLOWED, method="higher"))


def _rates(calibration: Calibration, groups: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """Count the videos above the limit, for each group that was not used for the fit."""
    rates = {}
    for group, videos in groups.items():
        if group not in (LEARNT, LIMIT, OTHER):
            scores, single = _scores(calibration, videos), _scores(calibration, videos.flatten(0, 1)[:, None])
            rates[group] = {
                "videos": len(scores), "warned": int((scores > calibration.facts.limit).sum()),
                "median": round(float(scores.median()), 2),
                "frames": len(single), "frames warned": int((single > calibration.facts.limit_of_few).sum()),
            }  # fmt: skip
    return rates


def _real_frames(trained: Trained, real: Sequence[Tested]) -> dict[str, tuple[tuple[str, ...], list[Sample]]]:
    by_site = {}
    for tested in real:
        site = tested.site
        if site.classes and site.task in ("", "segmentation"):
            if coarser_ids(trained.task.card.outputs, site.classes) is None:
                raise ValueError(f"site {tested.name!r}: the model's classes cannot be merged to its; remove it")
            frames = samples(site, SPLIT, trained.task.spec)
            by_site[tested.name] = (site.classes, frames[:: -(-len(frames) // MOST_FRAMES)])
    return by_site


def _temperature(
    trained: Trained, plan: Plan, real: Mapping[str, tuple[tuple[str, ...], list[Sample]]]
) -> tuple[float, dict[str, dict[str, float]]]:
    """Fit the temperature; return it and the calibration errors before and after, on unseen looks and real sites."""
    first, last = FIRST + plan.reference, FIRST + plan.reference + plan.limit  # first looks for the limit, and to test
    outputs = trained.task.card.outputs
    temperature = fits.fitted_temperature(*_pixels(trained, _labelled(trained, range(first, first + plan.labelled))))
    tests = {"unseen": (outputs, _labelled(trained, range(last, last + plan.labelled)))}
    tests |= {name: (classes, [read_sample(sample) for sample in frames]) for name, (classes, frames) in real.items()}
    errors = {}
    for name, (classes, items) in tests.items():
        ids = coarser_ids(outputs, classes)
        assert ids is not None
        logits, labels = _pixels(trained, items)
        before, after = (
            fits.calibration_error(merged_logits(logits[..., None, None] / divisor, ids)[..., 0, 0], labels)
            for divisor in (1.0, temperature)
        )
        errors[name] = {"frames": len(items), "before": round(before, 4), "after": round(after, 4)}
    return temperature, errors


def _labelled(trained: Trained, numbers: Iterable[int]) -> list[Item]:
    videos = _looks(KNOWN, numbers, "labelled frames", size=trained.size, spec=trained.task.spec, count=2)
    return list(chain.from_iterable(videos))


def _pixels(trained: Trained, items: Sequence[Item]) -> tuple[Tensor, Tensor]:
    """Return logits (N, C) and labels (N,) of every `SPARSE`-th row and column, at the network's size."""
    logits, labels = [], []
    with torch.no_grad():
        for item in follow(items, "comparing probabilities,"):
            image = network_input(item.images, *trained.size).to(next(trained.network.parameters()).device)
            answer = current(trained.task.predict(trained.network, {"image": image}), 4)[0].float().cpu()
            truth = torch.from_numpy(resize_target(last_target(item, "label"), *answer.shape[1:]))
            logits.append(answer[:, ::SPARSE, ::SPARSE].flatten(1).T)  # (C, h, w) -> (h*w, C)
            labels.append(truth[::SPARSE, ::SPARSE].flatten().long())
    return torch.cat(logits), torch.cat(labels)
