"""First steps of every bundle: error messages, progress display, site.yaml, settings and network."""

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
from shared_components.core.initial_weights import (
    describe_start,
    load_initial_weights,
    parse_start,
    source_of,
    start_weights,
    unused_file_warning,
)
from shared_components.core.method import Method, load_method
from shared_components.core.shipped_weights import EXPORTED, MODEL, is_export, shipped_weights
from shared_components.core.site_conditioning import describe_site
from shared_components.core.task import Task, choose_task
from shared_components.core.training_settings import Training, training_from
from shared_components.data.check import readable_samples
from shared_components.data.dataset import SampleDataset
from shared_components.data.files.classes import coarser_ids
from shared_components.data.files.images import DataError
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import SITE_VARIABLE, load_site
from shared_components.data.splits import SEEN, refuse_seen_test, seen_videos_after_training
from shared_components.inference import InferenceError
from shared_components.networks.bundle_config import check_size
from shared_components.networks.checkpoints import CheckpointError, header_of
from shared_components.networks.parts import freeze

logger = logging.getLogger(__name__)

SENTENCES = (ConfigError, SiteError, DataError, CheckpointError, InferenceError, NotWritten)
"""Errors with a message for users, printed without a traceback."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def explain_errors() -> None:
    """Print uncaught errors of ours, and of unreadable or unwritable paths, as one sentence without a traceback.

    MONAI wraps an error in several others ("Failed to evaluate ...") and logs each with a traceback, which hides the
    reason. Other errors keep their traceback.
    """

    def record(*arguments: Any, **options: Any) -> logging.LogRecord:
        log_record = logging.LogRecord(*arguments, **options)
        if log_record.exc_info and isinstance(log_record.exc_info[1], SENTENCES):
            log_record.exc_info = None
        return log_record

    sys.excepthook = _print_sentence
    logging.setLogRecordFactory(record)


def open_site(site_config: str | None) -> Site:
    """Read site.yaml, by default the file in ``SURGFL_SITE_CONFIG``; SiteError without a path or if invalid."""
    path = site_config or os.environ.get(SITE_VARIABLE)
    if path is None:
        raise SiteError(
            "site_config: not given; add --site_config /path/to/site.yaml, the description of the site, or set "
            f"{SITE_VARIABLE} to its path"
        )
    return load_site(Path(path))


@contextmanager
def _as_config_error() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from None


def method_of(name: str, **arguments: Any) -> Method:
    """Build the method; ConfigError if `method.load_method` refuses its name or an argument."""
    with _as_config_error():
        return load_method(name, **arguments)


def settings_of(training: Mapping[str, Any]) -> Training:
    """Read the section `training`; ConfigError for an unknown key or an invalid value."""
    with _as_config_error():
        settings = training_from(dict(training))
    if settings.epochs and is_overridden("training", "iterations"):
        raise ConfigError(
            f"--training#iterations {settings.iterations} has no effect, since epochs is {settings.epochs}; add "
            "--training#epochs 0"
        )
    return settings


def settings_at(training: Mapping[str, Any], checkpoint: str | Path | None) -> Training:
    """Read the section `training` with the checkpoint's input size; ConfigError as `settings_of` and `input_size`."""
    settings = settings_of(training)
    height, width = input_size(checkpoint, settings.height, settings.width, "training")
    return replace(settings, height=height, width=width)


def input_size(checkpoint: str | Path | None, height: int, width: int, *section: str) -> tuple[int, int]:
    """Return the (height, width) of a checkpoint's training; the arguments if its header has none.

    Raises ConfigError if the command line sets another size in this section.
    """
    learnt = trained_model.input_size(header_of(None if checkpoint is None else Path(checkpoint)), height, width)
    for name, value, used in zip(("height", "width"), (height, width), learnt, strict=True):
        if value != used and is_overridden(*section, name):
            option = "#".join((*section, name))
            raise ConfigError(
                f"--{option} {value} has no effect, since {checkpoint} was trained at {learnt[0]}x{learnt[1]} "
                f"and is used at that size; remove --{option}"
            )
    return learnt


def own_checkpoint(bundle_root: str) -> str:
    """Return the checkpoint in a bundle's folder: the shipped weights, or a user's `model.pt`.

    Raises CheckpointError if there is no checkpoint, or if its hash differs from the bundle's card.
    """
    root = Path(bundle_root).resolve()
    if (root / EXPORTED).is_file() and not is_export(root / EXPORTED, root / MODEL):
        return str(root / EXPORTED)
    return str(shipped_weights(root.name, root.parent, instead="name a checkpoint with --checkpoint"))


def task_of(
    tasks: Mapping[str, Any], site: Site, *, checkpoint: str | None = None, empty_policy: str | None = None
) -> Task:
    """Build the site's task, by default the bundle's first task, from the section `tasks`.

    Settings in a checkpoint's header, such as the length of clips, replace the section's settings. `empty_policy`
    replaces the setting of segmentation. Raises ConfigError for an unsupported task or an invalid setting.
    """
    notes = header_of(None if checkpoint is None else Path(checkpoint))
    numbers = {kind: trained_model.with_learnt_numbers(values, notes, kind) for kind, values in tasks.items()}
    if empty_policy is not None and "segmentation" in numbers:
        numbers["segmentation"]["empty_policy"] = empty_policy
    with _as_config_error():
        return choose_task(numbers, site.task, classes=site.classes, who=str(site.path))


def task_from_checkpoint(tasks: Mapping[str, Any], checkpoint: str | None, network: nn.Module) -> Task:
    """Build the task from a checkpoint's header; CheckpointError if missing, or as `trained_model.task_learnt`."""
    return trained_model.task_of_checkpoint(tasks, _checkpoint_path(checkpoint), network)


def readable_dataset(site: Site, split: str, task: Task, settings: Training) -> SampleDataset:
    """Return a split's samples at the network's size, without quarantined samples.

    Raises SiteError if the split is empty, or has more unreadable files than the site allows.
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
    """Return a bundle's network with the task's last layer and its initial weights.

    Args:
        definition: Network of `network_def`; its weights are not used.
        task: Task that sets the channels of the last layer.
        settings: Settings with the seed of the initial weights, as in a federation, and the frozen parts.
        bundle: Name of the bundle whose shipped weights are used for `rendered`.
        start: `random`, `rendered` or a path, see `initial_weights.load_initial_weights`; None: the setting `start`.
        site: Training site; None: no check for test videos that the initial weights have seen.

    Raises:
        ConfigError: A frozen part does not exist, the network does not take this frame size, or the initial weights
            have seen test videos of the site, see `splits.refuse_seen_test`.
        CheckpointError: The weights are missing or belong to another network.
    """
    kind, file = parse_start(start or settings.start)
    if warning := unused_file_warning(kind, start_weights()):
        logger.warning("%s", warning)
    rebuildable = buildable(definition)
    torch.manual_seed(settings.seed)
    network = rebuildable.with_classes(task.channels)
    with _as_config_error():
        check_size(network, settings.height, settings.width)
    origin = load_initial_weights(network, kind, card=task.card, bundle=bundle, file=file)
    with _as_config_error():
        if site is not None:
            refuse_seen_test(origin.get("seen", ""), site, start=origin["from"])
        fresh = f"; initialised from the seed: {', '.join(origin['fresh'])}" if origin["fresh"] else ""
        logger.info("initial weights: %s%s", describe_start(origin), fresh)
        freeze(network, settings.fixed)
    return network


def seen_videos(site: Site, settings: Training, *, bundle: str, start: str | None = None) -> dict[str, str]:
    """Return the header entry with the videos that a checkpoint has seen after the training; args as `network_for`.

    Raises CheckpointError if the initial weights are missing.
    """
    kind, file = parse_start(start or settings.start)
    source = source_of(kind, bundle, file)
    return seen_videos_after_training("" if source is None else header_of(source[0]).get(SEEN, ""), site)


def make_optimizer(network: nn.Module, settings: Training) -> torch.optim.Optimizer:
    """Return the optimizer of `training.make_optimizer`; ConfigError for unknown parts, and without parameters."""
    with _as_config_error():
        return local.make_optimizer(network, settings)


def trained_network_for(
    definition: nn.Module, task: Task, checkpoint: str | None, *, bundle: str, site: Site | None = None
) -> nn.Module:
    """Return a checkpoint's network with its weights; finer classes are merged to the task's classes.

    The network is the definition unless the checkpoint's header names another bundle than `bundle`. A model for unseen
    sites is conditioned on the site's text, see `site_conditioning.describe_site`.

    Raises:
        CheckpointError: The checkpoint is missing or damaged, or has another network, task or class map.
        SiteError: The site's text is invalid.
    """
    path = _checkpoint_path(checkpoint)
    learnt = _learnt_outputs(path, header_of(path), task.card)
    channels = task.channels if learnt == task.card.outputs else len(learnt)
    network = trained_model.network_of(buildable(definition), path, bundle=bundle, channels=channels)
    if site is not None:
        describe_site(network, path, site)
    return trained_model.with_wanted_classes(network, learnt, task.card.outputs)


def network_from_checkpoint(
    definition: nn.Module, checkpoint: str | None, *, bundle: str, site_config: str | None = None
) -> nn.Module:
    """Return a checkpoint's network with its weights and its own number of channels.

    Args and errors as in `trained_network_for`; only a model for unseen sites takes a site.yaml.
    """
    path, site = _checkpoint_path(checkpoint), None if site_config is None else open_site(site_config)
    network = trained_model.network_of(buildable(definition), path, bundle=bundle)
    return trained_model.condition_on_given_site(network, path, site)


def _learnt_outputs(path: Path, notes: Mapping[str, str], card: Card) -> tuple[str, ...]:
    """Return a checkpoint's outputs; CheckpointError unless they equal the site's or can be merged to the site's.

    A header without names is assumed to have the site's outputs; the shape of the last layer is checked later.
    """
    has, expected = notes.get("task", card.kind), card.kind
    names = notes.get("outputs") or notes.get("classes") or ",".join(card.outputs)
    learnt = tuple(name for name in names.split(",") if name)
    if has == expected and coarser_ids(learnt, card.outputs) is None:
        has, expected = str(replace(card, outputs=learnt)), str(card)
    if has != expected:
        raise CheckpointError(
            f"checkpoint {path} was trained for {has}, but the site's task is {expected}; use the checkpoint of a "
            "federation with the site's task, or correct site.yaml"
        )
    return learnt


def _checkpoint_path(checkpoint: str | None) -> Path:
    if checkpoint is None:
        raise CheckpointError("checkpoint: not given; add --checkpoint /path/to/model.safetensors")
    return Path(checkpoint)


def _print_sentence(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    cause: BaseException | None = error
    while cause is not None:
        message = str(cause) if isinstance(cause, SENTENCES) else ""
        if (
            not message
            and isinstance(cause, OSError)
            and cause.strerror
            and (cause.filename or cause.errno in _NO_ROOM)
        ):
            where = cause.filename or "a file in output_dir"
            message = f"{where}: {cause.strerror}; correct the path or its permissions, or free disk space"
        if message:
            sys.stderr.write(printable(f"error: {message}\n"))
            return
        cause = cause.__cause__
    sys.__excepthook__(kind, error, traceback)


def show_progress() -> None:
    """Display this process's progress; only the first process of a distributed training does."""
    if int(os.environ.get("RANK", "0")):
        return
    if not can_move(sys.stdout):
        listen(StepLog("", logger))
        return
    board = Board()
    lines = _Lines(board)
    for known in [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]:
        for handler in known.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
                handler.setStream(lines)
    sys.stdout = lines  # for handlers that are created later
    listen(board.hear)
    board.__enter__()
    atexit.register(board.close)


class _Lines(io.TextIOBase):
    """Stream whose lines stay above the progress bar."""

    def __init__(self, board: Board) -> None:
        self._board, self._begun = board, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        if lines:
            self._board.say("\n".join(lines))
        return len(text)
