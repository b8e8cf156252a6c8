"""Limits of a site for jobs, in `limits.yaml` beside `site.yaml`; a missing key or file means the default.

iterations: 2000          # local steps per round
height: 1080
privacy: {noise_multiplier: 1.0, clip: 0.5, epsilon: 50}
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta
from msgspec.structs import asdict

from shared_components.common.schema import Schema, parse, short_repr
from shared_components.core.bundle import Bundle
from shared_components.core.task import Task
from shared_components.core.training import check_frames
from shared_components.data.files.images import read_yaml_file
from shared_components.data.site import Site, SiteError
from shared_components.federation.messages.job import LARGEST, Job
from shared_components.federation.privacy.gaussian import DELTA, Clip, Delta, Multiplier
from shared_components.networks.bundle_config import check_size, weightless
from shared_components.networks.forward_limits import forward_numbers
from shared_components.networks.network_class import numbers_in

FILE = "limits.yaml"
Count = Annotated[int, Meta(ge=1, le=10**15)]


class Demand(Schema, frozen=True):
    """Noise that a site demands; the site refuses jobs without ``privacy``.

    Attributes:
        noise_multiplier: Smallest noise multiplier.
        clip: Largest clipping norm.
        epsilon: Largest epsilon of all updates ever sent, over all jobs.
        delta: Delta of the epsilon.
    """

    noise_multiplier: Multiplier = 0
    clip: Clip = math.inf
    epsilon: Annotated[float, Meta(gt=0, le=LARGEST)] = math.inf
    delta: Delta = DELTA


class Limits(Schema, frozen=True):
    """Largest values that a site accepts from a job.

    Attributes:
        rounds: Number of rounds.
        sites: Hospitals in the federation.
        longest_wait_seconds: Seconds that one task may take.
        iterations: Local steps per round.
        epochs: Passes over the training samples per round, instead of steps.
        batch_size: Samples in a step.
        height: Height of the network's input, in pixels.
        width: Width of the network's input, in pixels.
        frames: Frames in a clip.
        batch_pixels: ``batch_size`` x ``frames`` x ``height`` x ``width``.
        parameters: Parameters and constants of a network whose arguments the job changes.
        largest_tensor: Numbers in the largest tensor that such a network computes for a batch.
        activations: Numbers in all tensors of such a network's forward pass for a batch.
        feature_cache_gb: Disk space for features of frozen encoders, in 10^9 bytes; 0: none.
        frame_cache_gb: Disk space for decoded frames of a run, in 10^9 bytes; 0: none.
        workers: Threads per GPU that read frames; by default up to 4, without a GPU none.
        gpus: GPUs that share each training step, at most the batch's samples; tested only as processes on CPUs.
        recorded_steps: Whether a GPU records training steps as CUDA graphs.
        arguments: Largest whole number, except seeds, and longest list in the arguments of method, task and network.
        privacy: Noise that the site demands on its updates; by default none.
    """

    rounds: Count = 10_000
    sites: Count = 1_000
    longest_wait_seconds: Count = 7 * 24 * 3600
    iterations: Count = 10_000
    epochs: Count = 100
    batch_size: Count = 256
    height: Count = 4096
    width: Count = 4096
    frames: Count = 64
    batch_pixels: Count = 2**28
    parameters: Count = 500_000_000
    largest_tensor: Count = 2**29
    activations: Count = 2**35
    feature_cache_gb: Annotated[float, Meta(ge=0, le=10**6)] = 20
    frame_cache_gb: Annotated[float, Meta(ge=0, le=10**6)] = 20
    workers: Annotated[int, Meta(ge=0, le=64)] | None = None
    recorded_steps: bool = True
    gpus: Annotated[int, Meta(ge=1, le=64)] | Literal["all"] = 1
    arguments: Count = 100_000
    privacy: Demand | None = None


def limits_of(site: Site) -> Limits:
    """Return the limits in `limits_file`."""
    return read_limits(limits_file(site))


def why_unrecorded(limits: Limits, job: Job) -> str:
    """Return the reason why a site does not record the training steps of a job, or an empty text."""
    if not limits.recorded_steps:
        return f"recorded_steps is false in {FILE}"
    return "the job adds noise to updates" if job.noise else ""


def limits_file(site: Site) -> Path:
    """Return the path of a site's limits: beside site.yaml, or beside a link to it; SiteError if at both places."""
    file, beside = site.path.resolve().with_name(FILE), site.path.with_name(FILE)
    if not beside.is_file() or not file.is_file():
        return beside if beside.is_file() else file
    if not beside.samefile(file):
        raise SiteError(f"{site.path} is a link, and {beside} and {file} both limit what a job may ask; remove one")
    return file


def read_limits(path: Path) -> Limits:
    """Read a file of limits; a missing file means the defaults.

    SiteError: the file cannot be read, has an unknown key, or a limit out of range.
    """
    try:
        values = read_yaml_file(path, error=SiteError)
    except FileNotFoundError:
        return Limits()
    if isinstance(values, Mapping) and "privacy" in values and not values["privacy"]:
        value = short_repr(values["privacy"])
        raise SiteError(f"{path}: privacy is {value}; write the demanded noise, such as noise_multiplier: 1.0")
    return parse(Limits, values, f"{path}", error=SiteError)


def gpus_of(limits: Limits) -> int:
    """Return the number of GPUs that limits ask for; at least 1, also without a GPU."""
    return max(1, torch.cuda.device_count()) if limits.gpus == "all" else limits.gpus


def check_limits(job: Job, bundle: Bundle, task: Task, site: Site, *, sites: int = 1) -> None:
    """Refuse a job that exceeds a site's limits, before anything is built; SiteError names the first key and the file.

    ``bundle`` has the job's settings; ``sites`` is the number of sites in the federation.
    """
    limits = limits_of(site)
    allowed = asdict(limits)
    for limit, key, value in _demanded(job, bundle, task, sites, limits):
        if value > allowed[limit]:
            raise SiteError(
                f"site {site.name}: the job's {key} is {value}, and the site allows at most {allowed[limit]}; make it "
                f"less, or write '{limit}: {value}' in {limits_file(site)}"
            )
    if (used := gpus_of(limits)) > (size := bundle.training.batch_size):
        raise SiteError(
            f"site {site.name}: the job's training.batch_size is {size}, fewer samples than the site's {used} GPUs; "
            f"write 'gpus: {size}' in {limits_file(site)}, or make the batch larger"
        )
    for owner in filter(None, (site, site.added)):  # owners of the training frames
        if (demand := limits_of(owner).privacy) is not None:
            _check_noise(job, demand, owner)


def _check_noise(job: Job, demand: Demand, site: Site) -> None:
    """Refuse a job with less noise than a site demands; `noisy_updates.Noisy` checks the budget."""
    who, see, noise = f"site {site.name}: the job", f"or see {limits_file(site)}", job.noise
    if noise is None:
        raise SiteError(f"{who} has no 'privacy', and the site demands noise; add it, {see}")
    multiplier, least = noise.noise_multiplier, demand.noise_multiplier
    if multiplier < least:
        limit = f"the site demands at least {least}"
        raise SiteError(f"{who}'s privacy.noise_multiplier is {multiplier}, and {limit}; make it more, {see}")
    if noise.clip > demand.clip:
        limit = f"the site allows at most {demand.clip}"
        raise SiteError(f"{who}'s privacy.clip is {noise.clip}, and {limit}; make it less, {see}")


def _demanded(job: Job, bundle: Bundle, task: Task, sites: int, limits: Limits) -> Iterator[tuple[str, str, float]]:
    training, frames = bundle.training, task.spec.frames
    yield "rounds", "rounds", job.rounds
    yield "longest_wait_seconds", "longest_wait_seconds", job.longest_wait_seconds
    yield "sites", "number of sites", sites
    for key in ("iterations", "epochs", "batch_size", "height", "width", "feature_cache_gb"):
        yield key, f"training.{key}", getattr(training, key)
    yield "frames", f"tasks.{task.card.kind}.frames", frames
    pixels = training.batch_size * frames * training.height * training.width
    yield "batch_pixels", "training.batch_size x frames x height x width", pixels
    for section in ("arguments", "tasks", "network"):
        for key, value in _whole_numbers(section, getattr(job, section)):
            yield "arguments", key, value
    if bundle.chosen:  # not the bundle's own network
        yield from _demanded_by_network(bundle, task, limits)


def _demanded_by_network(bundle: Bundle, task: Task, limits: Limits) -> Iterator[tuple[str, str, float]]:
    """Yield the network's demands; the caller refuses each before the next is measured."""
    network = weightless(bundle.network, out_channels=task.channels)
    if type(clip := getattr(network, "frames", 1)) is int:
        yield "frames", "network, in frames of a clip,", clip
    yield "parameters", "network, in parameters,", numbers_in(network)
    batch, height, width = bundle.training.batch_size, bundle.training.height, bundle.training.width
    check_frames(network, task)
    check_size(network, height, width)
    shape = [1, *([task.spec.frames] if task.spec.frames > 1 else []), 3, height, width]
    largest, total = limits.largest_tensor // batch, limits.activations // batch
    computed = forward_numbers(json.dumps(bundle.network), task.channels, tuple(shape), largest=largest, total=total)
    yield "largest_tensor", "network, in numbers of the largest tensor of a batch,", computed.largest * batch
    yield "activations", "network, in numbers that it computes of a batch,", computed.total * batch


def _whole_numbers(key: str, value: Any) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers in a section, except seeds, and the lengths of its lists, by key."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _whole_numbers(f"{key}.{name}", item)
    elif isinstance(value, list | tuple):
        yield f"{key}, in values,", len(value)
        for item in value:
            yield from _whole_numbers(key, item)
    elif type(value) is int and not key.endswith(".seed"):
        yield key, value
