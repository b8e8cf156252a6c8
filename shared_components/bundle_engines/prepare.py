"""First steps of every bundle: explain errors, show progress, read site.yaml and settings, build the network."""

from __future__ import annotations

import atexit
import errno
import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from shared_components.bundle_engines.options import ConfigError, buildable, is_overridden
from shared_components.common.atomic import NotWritten
from shared_components.common.progress import listen
from shared_components.common.progress_display import Board, StepLog, can_move
from shared_components.common.sanitise import printable
from shared_components.core import trained_model
from shared_components.core import training as local
from shared_components.core.card import Card
from shared_components.core.initial_weights import begin, chosen_start, describe_start, source_of, start_weights, unused
from shared_components.core.method import Method, load_method
from shared_components.core.shipped_weights import EXPORTED, MODEL, is_export, shipped_weights
from shared_components.core.site_conditioning import describe_site
from shared_components.core.task import Task, choose_task
from shared_components.core.trained_model import network_of, read_as, task_learnt, told_as_asked, with_learnt_numbers
from shared_components.core.training_settings import Training, training_from
from shared_components.data.check import readable_samples
from shared_components.data.classes import coarser_ids
from shared_components.data.dataset import SampleDataset
from shared_components.data.files import DataError
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import load_site
from shared_components.data.splits import SEEN, refuse_test, seen_after
from shared_components.inference import InferenceError
from shared_components.networks.bundle_config import check_size
from shared_components.networks.checkpoints import CheckpointError, header_of
from shared_components.networks.parts import freeze

logger = logging.getLogger(__name__)

SENTENCES = (ConfigError, SiteError, DataError, CheckpointError, InferenceError, NotWritten)
"""Errors whose message is one sentence for the user."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def explain_errors() -> None:
    """End the program at an uncaught error of ours, or at a path that cannot be read or written, with one sentence.

    MONAI wraps an error in several others ("Failed to evaluate ...") and logs each with a traceback, in the middle of
    which the reason stands. Other errors keep their traceback.
    """
    sys.excepthook = _print_sentence
    logging.setLogRecordFactory(_record)


def _record(*arguments: Any, **options: Any) -> logging.LogRecord:
    record = logging.LogRecord(*arguments, **options)
    if record.exc_info and isinstance(record.exc_info[1], SENTENCES):
        record.exc_info = None
    return record


def open_site(site_config: str | None) -> Site:
    """Read the site's description; SiteError without a path, or where the file cannot be used."""
    if site_config is None:
        raise SiteError("site_config: not given; add --site_config /path/to/site.yaml, the description of the site")
    return load_site(Path(site_config))


@contextmanager
def _as_config_error() -> Iterator[None]:
    """Turn a refused value into a `ConfigError`."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from None


def method_of(name: str, **arguments: Any) -> Method:
    """Build the method that is trained; ConfigError as `method.load_method` refuses a name, an argument or a value."""
    with _as_config_error():
        return load_method(name, **arguments)


def settings_of(training: Mapping[str, Any]) -> Training:
    """Read the section `training`; ConfigError where a key is unknown or a value wrong."""
    with _as_config_error():
        settings = training_from(dict(training))
    if settings.epochs and is_overridden("training", "iterations"):
        raise ConfigError(
            f"--training#iterations {settings.iterations} would change nothing, since epochs is {settings.epochs}; add "
            "--training#epochs 0"
        )
    return settings


def settings_at(training: Mapping[str, Any], checkpoint: str | Path | None) -> Training:
    """Read the section `training`, with the checkpoint's input size; ConfigError for others, or an unknown key."""
    settings = settings_of(training)
    height, width = input_size(checkpoint, settings.height, settings.width, "training")
    return replace(settings, height=height, width=width)


def input_size(checkpoint: str | Path | None, height: int, width: int, *section: str) -> tuple[int, int]:
    """Return the (height, width) a checkpoint was trained at; the given ones where its header has none.

    Raises:
        ConfigError: The command line asks for another, by the options of this name in a section.
    """
    learnt = trained_model.input_size(header_of(_path(checkpoint)), height, width)
    for name, given, used in zip(("height", "width"), (height, width), learnt, strict=True):
        if given != used and is_overridden(*section, name):
            option = "#".join((*section, name))
            raise ConfigError(
                f"--{option} {given} would change nothing, since {checkpoint} was trained at {learnt[0]}x{learnt[1]} "
                "and is used at that size; leave it out"
            )
    return learnt


def own_checkpoint(bundle_root: str) -> str:
    """Return the checkpoint of a bundle's folder: the shipped one, or a `model.pt` that a person put in its place.

    Raises:
        CheckpointError: There is none, or one that is not its card's.
    """
    root = Path(bundle_root).resolve()
    if (root / EXPORTED).is_file() and not is_export(root / EXPORTED, root / MODEL):
        return str(root / EXPORTED)
    return str(shipped_weights(root.name, root.parent, instead="name a checkpoint with --checkpoint"))


def task_of(
    tasks: Mapping[str, Any], site: Site, *, checkpoint: str | None = None, empty_policy: str | None = None
) -> Task:
    """Build the task that the site names, or else the bundle's first, by the section `tasks`.

    The numbers of a checkpoint's header, such as the length of clips, replace the section's; `empty_policy` that of
    segmentation.

    Raises:
        ConfigError: The bundle does not learn the site's task, or a number is wrong.
    """
    notes = header_of(_path(checkpoint))
    numbers = {kind: with_learnt_numbers(values, notes, kind) for kind, values in tasks.items()}
    if empty_policy is not None and "segmentation" in numbers:
        numbers["segmentation"]["empty_policy"] = empty_policy
    with _as_config_error():
        return choose_task(numbers, site.task, classes=site.classes, who=str(site.path))


def task_from_checkpoint(tasks: Mapping[str, Any], checkpoint: str | None, network: nn.Module) -> Task:
    """Build the task of a checkpoint's header; CheckpointError without one, or as `trained_model.task_learnt`."""
    return task_learnt(tasks, _given(checkpoint), network)


def readable_dataset(site: Site, split: str, task: Task, settings: Training) -> SampleDataset:
    """Return a split's samples at the network's size, without those that the site's quarantine excludes.

    Raises:
        SiteError: The split is empty, or has more unreadable files than the site allows.
    """
    readable, _ = readable_samples(site, split, spec=task.spec)
    return SampleDataset(readable, height=settings.height, width=settings.width, site=site)


def network_for(
    definition: nn.Module,
    task: Task,
    settings: Training,
    *,
    bundle: str,
    start: str | None = None,
    site: Site | None = None,
) -> nn.Module:
    """Return the defined network with the task's last layer and its initial weights.

    Args:
        definition: The network of `network_def`; its own weights are not used.
        task: Its channels are those of the last layer.
        settings: Its seed is that of the initial weights, as in a federation; the parts that it fixes do not train.
        bundle: Name of the bundle, whose shipped weights `rendered` means.
        start: `random`, `rendered` or the path of a file, see `initial_weights.begin`; default: the settings'.
        site: Where it is trained; None: what the start has seen is not compared with a test.

    Raises:
        ConfigError: A part that is to be fixed does not exist, the network takes no frames of this size, or the start
            has seen videos that the site tests on, see `splits.refuse_test`.
        CheckpointError: There are no such weights, or they are of another network.
    """
    kind, file = chosen_start(start or settings.start)
    if warning := unused(kind, start_weights()):
        logger.warning("%s", warning)
    remade = buildable(definition)
    torch.manual_seed(settings.seed)
    network = remade.with_classes(task.channels)
    with _as_config_error():
        check_size(network, settings.height, settings.width)
    begun = begin(network, kind, card=task.card, bundle=bundle, file=file)
    fresh = ", ".join(begun["fresh"])
    if site is not None:
        with _as_config_error():
            refuse_test(begun.get("seen", ""), site, start=begun["from"])
    logger.info("the network begins from %s%s", describe_start(begun), f"; from the seed: {fresh}" if fresh else "")
    with _as_config_error():
        freeze(network, settings.fixed)
    return network


def seen_videos(site: Site, settings: Training, *, bundle: str, start: str | None = None) -> dict[str, str]:
    """Return what a checkpoint's header says of the videos that its weights have seen when they are trained.

    Args:
        site: Where they are trained.
        settings, bundle, start: As in `network_for`, which has compared what the start has seen.

    Raises:
        CheckpointError: There are no such weights.
    """
    kind, file = chosen_start(start or settings.start)
    source = source_of(kind, bundle, file)
    return seen_after("" if source is None else header_of(source[0]).get(SEEN, ""), site)


def make_optimizer(network: nn.Module, settings: Training) -> torch.optim.Optimizer:
    """Return the optimizer of `training.make_optimizer`.

    Raises:
        ConfigError: A part with a learning rate of its own does not exist, or no parameters are left to train.
    """
    with _as_config_error():
        return local.make_optimizer(network, settings)


def trained_network_for(
    definition: nn.Module, task: Task, checkpoint: str | None, *, bundle: str, site: Site | None = None
) -> nn.Module:
    """Return a checkpoint's network with its weights; outputs of a finer class map are merged to the task's classes.

    The network is the definition unless the checkpoint's header names another bundle than `bundle`. A model for unseen
    sites is conditioned on the site's text, see `site_conditioning.describe_site`.

    Raises:
        CheckpointError: Not given, missing, damaged, of another network, task or class map.
        SiteError: The site's text cannot be used.
    """
    path = _given(checkpoint)
    learnt = _learnt_outputs(path, header_of(path), task.card)
    merged = learnt != task.card.outputs
    channels = len(learnt) if merged else task.channels
    network = network_of(buildable(definition), path, bundle=bundle, channels=channels)
    if site is not None:
        describe_site(network, path, site)
    return read_as(network, learnt, task.card.outputs)


def network_from_checkpoint(
    definition: nn.Module, checkpoint: str | None, *, bundle: str, site_config: str | None = None
) -> nn.Module:
    """Return a checkpoint's network with its weights and the channels that they have.

    Args and errors as in `trained_network_for`; only a model for unseen sites takes a site.yaml.
    """
    path, site = _given(checkpoint), None if site_config is None else open_site(site_config)
    return told_as_asked(network_of(buildable(definition), path, bundle=bundle), path, site)


def _learnt_outputs(path: Path, notes: Mapping[str, str], card: Card) -> tuple[str, ...]:
    """Return the outputs that a checkpoint has learnt, which are the site's or can be merged to them.

    A header without names has the site's; the shape of the last layer then shows whether their number is right.
    """
    has, expected = notes.get("task", card.kind), card.kind
    names = notes.get("outputs") or notes.get("classes") or ",".join(card.outputs)
    learnt = tuple(name for name in names.split(",") if name)
    if has == expected and coarser_ids(learnt, card.outputs) is None:
        has, expected = str(replace(card, outputs=learnt)), str(card)
    if has != expected:
        raise CheckpointError(
            f"checkpoint {path} has learnt {has}, and the site's task is {expected}; use the checkpoint of a "
            "federation with the site's task, or correct site.yaml"
        )
    return learnt


def _path(checkpoint: str | Path | None) -> Path | None:
    return None if checkpoint is None else Path(checkpoint)


def _given(checkpoint: str | None) -> Path:
    if checkpoint is None:
        raise CheckpointError("checkpoint: not given; add --checkpoint /path/to/model.safetensors")
    return Path(checkpoint)


def _print_sentence(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SENTENCES):
            sys.stderr.write(printable(f"error: {cause}\n"))
            return
        if isinstance(cause, OSError) and cause.strerror and (cause.filename or cause.errno in _NO_ROOM):
            where = cause.filename or "a file in output_dir"
            sentence = f"error: {where}: {cause.strerror}; correct the path, or its rights, or make room there\n"
            sys.stderr.write(printable(sentence))
            return
        cause = cause.__cause__
    sys.__excepthook__(kind, error, traceback)


def show_progress() -> None:
    """Display this process's progress from now on; of several that train together only the first one's."""
    if int(os.environ.get("RANK", "0")):
        return
    if not can_move(sys.stdout):
        listen(StepLog("", logger))
        return
    board = Board()
    lines = _Lines(board)
    for one in [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]:
        for handler in one.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
                handler.setStream(lines)
    sys.stdout = lines  # of handlers that are made later
    listen(board.hear)
    board.__enter__()
    atexit.register(board.close)


class _Lines(io.TextIOBase):
    """A stream whose lines stay above the bar."""

    def __init__(self, board: Board) -> None:
        self._board, self._begun = board, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        if lines:
            self._board.say("\n".join(lines))
        return len(text)
