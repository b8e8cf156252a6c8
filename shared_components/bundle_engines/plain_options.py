"""Check a bundle's plain options by type and range before anything is read, built or written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from monai.bundle import ConfigExpression
from msgspec import Meta

from shared_components.common.schema import check_values, shown

REFERENCE = "@"  # begins a value that stands for another key's


def _text(words: str) -> Any:
    return Annotated[str, Meta(pattern=r"\S", description=f"it is {words}")]


def _section(key: str) -> Any:
    return Annotated[dict[Any, Any], Meta(description=f"it is a section: write its settings as --{key}#<name> <value>")]


_COUNT = Annotated[int, Meta(ge=1, le=10**9, description="it is a whole number from 1 on")]
_PATH = _text("a path")

KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("site_config", "checkpoint", "input"), _PATH | None),
    "output_dir": _PATH,
    "start": _text("random, rendered or a path") | None,
    "split": _text("the name of a split: train, validation or test"),
    "empty_policy": _text("diagonal or paper"),
    "masks": _text("png or none"),
    "precision": _text("float32 or bf16"),
    **dict.fromkeys(("val_interval", "every", "height", "width"), _COUNT),
    "video_rate": Annotated[float, Meta(gt=0, le=1e9, description="it is a number of images a second, above 0")] | None,
    "pictures": Annotated[bool | None, Meta(description="it is true, false or null")],
    **{key: _section(key) for key in ("training", "tasks", "network_def", "method")},
}
"""The type of every option that a bundle may have; `device` depends on the machine."""


def wrong_option(config: Mapping[str, Any]) -> str:
    """Return one sentence on the first plain option that is of another kind than it should be; empty: all fit.

    A value that MONAI works out, an expression or a reference, is left to what reads it.
    """
    plain = {key: str(v) if isinstance(v, Path) else v for key, v in config.items() if not _is_worked_out(v)}
    try:
        check_values(KINDS, plain, key="--{}")
    except ValueError as error:
        return str(error)
    if "device" in plain and not _is_device(plain["device"]):
        return f"--device is {shown(plain['device'])}; it is a device of this machine, such as cpu or cuda:0"
    return ""


def _is_device(value: Any) -> bool:
    try:
        torch.empty(0, device=torch.device(value))
    except (TypeError, RuntimeError, AssertionError):  # no name of one, or none of this machine's
        return False
    return True


def _is_worked_out(value: Any) -> bool:
    return ConfigExpression.is_expression(value) or (isinstance(value, str) and value.startswith(REFERENCE))
