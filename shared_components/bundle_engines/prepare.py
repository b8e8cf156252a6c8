"""What every bundle does first: explain errors, read site.yaml and settings, build the network."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from shared_components.bundle_config import (
    Training,
    build_network,
    bundle_names,
    load_bundle,
    training_from,
)
from shared_components.bundle_engines.options import ConfigError
from shared_components.checkpoints import (
    CheckpointError,
    load_encoder,
    load_into,
    load_metadata,
    load_weights,
)
from shared_components.data.check import readable_samples
from shared_components.data.dataset import SampleDataset
from shared_components.data.sites import Site, SiteError, load_site
from shared_components.inference import InferenceError
from shared_components.method import Method, load_method
from shared_components.networks.pvt_fpn import PvtFpn

logger = logging.getLogger(__name__)

SENTENCES = (SiteError, CheckpointError, InferenceError)
"""Errors whose message is one sentence for the person at the keyboard."""


def explain_errors() -> None:
    """Let an uncaught error of ours end the program with its sentence alone.

    MONAI wraps an error in several others ("Failed to evaluate ..."), which leaves the reason in the middle
    of a long traceback. Other errors keep theirs.
    """
    sys.excepthook = _print_sentence


def open_site(site_config: str | None) -> Site:
    """Read the site's description.

    Raises:
        SiteError: the path is missing, or the file cannot be used.
    """
    if site_config is None:
        raise SiteError(
            "site_config: not given; add --site_config /path/to/site.yaml, the description of the site"
        )
    return load_site(Path(site_config))


def method_of(name: str, **arguments: Any) -> Method:
    """Build the method that is trained, see `method.load_method`.

    Raises:
        ConfigError: there is no such method, or it takes no such argument or value.
    """
    try:
        return load_method(name, **arguments)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def settings_of(training: Mapping[str, Any]) -> Training:
    """Read the section `training`.

    Raises:
        ConfigError: a key is unknown.
    """
    try:
        return training_from(dict(training))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def settings_at(training: Mapping[str, Any], checkpoint: str | Path | None) -> Training:
    """Read the section `training`, with the input size that the checkpoint says it was trained at."""
    settings = settings_of(training)
    height, width = input_size(checkpoint, settings.height, settings.width)
    return replace(settings, height=height, width=width)


def input_size(checkpoint: str | Path | None, height: int, width: int) -> tuple[int, int]:
    """Return the (height, width) a checkpoint was trained at; the given ones where it does not say."""
    path = Path(checkpoint or "")
    notes = load_metadata(path) if path.is_file() else {}
    return int(notes.get("height", height)), int(notes.get("width", width))


def readable_dataset(site: Site, split: str, settings: Training) -> SampleDataset:
    """Return a split's frames at the network's size, without those that the site's quarantine sets aside.

    Raises:
        SiteError: the split is empty, or has more unreadable files than the site allows.
    """
    kept, _ = readable_samples(site, split)
    return SampleDataset(kept, height=settings.height, width=settings.width, site=site)


def network_for(definition: PvtFpn, site: Site, *, seed: int, encoder_weights: str | None = None) -> PvtFpn:
    """Return the defined network with as many classes as the site has, initialised from the seed alone.

    Args:
        definition: the network of `network_def`; its own weights are not used.
        site: whose class map decides the number of classes.
        seed: of the initial weights, as in a federation.
        encoder_weights: official ImageNet weights of the encoder.
    """
    torch.manual_seed(seed)
    network = definition.with_classes(len(site.classes))
    if encoder_weights is not None:
        load_encoder(network, Path(encoder_weights))
    return network


def trained_network_for(definition: PvtFpn, site: Site, checkpoint: str | None, *, bundle: str) -> nn.Module:
    """Return the network that a checkpoint is of, with as many classes as the site has, and its weights.

    Args:
        definition: the network of `network_def`, taken unless the checkpoint's header names another bundle.
        site: whose class map decides the number of classes.
        checkpoint: its path.
        bundle: whose config this is.

    Raises:
        CheckpointError: not given, missing, damaged, of another network or of another class map.
    """
    return _trained(definition, _given(checkpoint), bundle, len(site.classes))


def network_from_checkpoint(definition: PvtFpn, checkpoint: str | None, *, bundle: str) -> nn.Module:
    """Return the network that a checkpoint is of, with its weights and so its number of classes.

    Args and errors as in `trained_network_for`.
    """
    path = _given(checkpoint)
    head = load_weights(path).get("head_global.weight")
    return _trained(definition, path, bundle, None if head is None else len(head))


def _trained(definition: PvtFpn, path: Path, bundle: str, classes: int | None) -> nn.Module:
    named = load_metadata(path).get("bundle", bundle) if path.is_file() else bundle
    network: nn.Module = definition if classes is None else definition.with_classes(classes)
    if named != bundle and named in bundle_names():
        logger.info("checkpoint %s is of bundle %s: that bundle's network is built", path, named)
        network = build_network(
            load_bundle(named).network, **({} if classes is None else {"out_channels": classes})
        )
    try:
        load_into(network, path)
    except CheckpointError as error:
        if named in bundle_names():
            raise
        raise CheckpointError(
            f"{error}; it is of bundle {named!r}, which is not among those here ({', '.join(bundle_names())})"
        ) from None
    return network


def _given(checkpoint: str | None) -> Path:
    if checkpoint is None:
        raise CheckpointError("checkpoint: not given; add --checkpoint /path/to/model.safetensors")
    return Path(checkpoint)


def _print_sentence(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (*SENTENCES, ConfigError)):
            sys.stderr.write(f"error: {cause}\n")
            return
        cause = cause.__cause__
    sys.__excepthook__(kind, error, traceback)
