"""What may stand in a bundle's plain options: kinds and ranges, told before anything is read, built or written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigExpression

REFERENCE = "@"  # begins a value that stands for another key's

Form = tuple[Callable[[Any], bool], str]


def _is_text(value: object) -> bool:
    return isinstance(value, (str, Path)) and bool(str(value).strip())


def _is_whole(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_rate(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _is_section(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_device(value: Any) -> bool:
    try:
        torch.empty(0, device=torch.device(value))
    except (TypeError, RuntimeError, AssertionError):  # no name of one, or none of this machine's
        return False
    return True


def _or_null(form: Form) -> Form:
    fits, words = form
    return lambda value: value is None or fits(value), words


_PATH: Form = (_is_text, "a path")
_COUNT: Form = (_is_whole, "a whole number from 1 on")
_SECTION: Form = (_is_section, "a section: write its settings as --{key}#<name> <value>")

FORMS: Mapping[str, Form] = {
    "site_config": _or_null(_PATH),
    "checkpoint": _or_null(_PATH),
    "input": _or_null(_PATH),
    "output_dir": _PATH,
    "start": _or_null((_is_text, "random, rendered or a path")),
    "split": (_is_text, "the name of a split: train, validation or test"),
    "empty_policy": (_is_text, "diagonal or paper"),
    "masks": (_is_text, "png or none"),
    "precision": (_is_text, "float32 or bf16"),
    "val_interval": _COUNT,
    "every": _COUNT,
    "height": _COUNT,
    "width": _COUNT,
    "video_rate": _or_null((_is_rate, "a number of images a second, above 0")),
    "pictures": _or_null((lambda value: isinstance(value, bool), "true, false or null")),
    "device": (_is_device, "a device of this machine, such as cpu or cuda:0"),
    "training": _SECTION,
    "tasks": _SECTION,
    "network_def": _SECTION,
    "method": _SECTION,
}
"""By option that a bundle may have: whether a value fits, and what it is in words."""


def wrong_option(config: Mapping[str, Any]) -> str:
    """Return one sentence on the first plain option that is of another kind than it should be; empty: all fit.

    A value that MONAI works out, an expression or a reference, is left to what reads it.
    """
    for key, (fits, words) in FORMS.items():
        if key in config and not _is_worked_out(config[key]) and not fits(config[key]):
            return f"--{key} is {config[key]!r:.80}; it is {words.format(key=key)}"
    return ""


def _is_worked_out(value: Any) -> bool:
    return ConfigExpression.is_expression(value) or (isinstance(value, str) and value.startswith(REFERENCE))
