"""Find the bundles, and build their networks from plain values without running anything that a config says."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from shared_components.common.plain_yaml import read_own_yaml
from shared_components.common.schema import short_repr
from shared_components.networks.adapter import adapted
from shared_components.networks.network_class import is_ours, make, network_class, without_memory


def bundles_folder() -> Path:
    """Return the folder of the bundles: it lies beside the package, in a checkout and when installed."""
    return Path(__file__).resolve().parents[2] / "bundles"


def bundle_names() -> list[str]:
    """Return the bundles by listing their folder."""
    return sorted(p.name for p in bundles_folder().iterdir() if (p / "configs" / "train.yaml").is_file())


def bundle_for(method: str) -> str:
    """Return the bundle that a method is used with: one of its own name, else the baselines' network."""
    own = bundles_folder() / method / "configs" / "train.yaml"
    return method if own.is_file() else "pvt_fpn"


def weights_of(name: str) -> str:
    """Return the bundle whose shipped weights ``start: rendered`` means: the one that `weights_of` names, or itself.

    Raises ValueError where there is no such bundle.
    """
    path = bundles_folder() / name / "configs" / "train.yaml"
    whose = (read_config(path.read_text("utf-8")).get("weights_of") if path.is_file() else None) or name
    if whose != name and whose not in bundle_names():
        raise ValueError(
            f"{path}: weights_of is {short_repr(whose)}, and there are the bundles {', '.join(bundle_names())}"
        )
    return str(whose)


@functools.lru_cache(maxsize=16)
def read_config(text: str) -> Mapping[str, Any]:
    """Read a config of a bundle without evaluating it; a site reads its bundle a dozen times a round."""
    return read_own_yaml(text)


def build_network(definition: Mapping[str, Any], **overrides: Any) -> nn.Module:
    """Build the network that `network_def` names, see `network_class`; one of another library is `adapter.adapted`.

    Raises ValueError where it names another class, or the class cannot be made with these arguments.
    """
    kind = network_class(definition)
    if not is_ours(kind):
        channels = overrides.pop("out_channels", None)
        return adapted({**definition, **overrides}, channels)
    return make(kind, {k: v for k, v in definition.items() if not k.startswith("_")} | overrides)


def weightless(definition: Mapping[str, Any], **overrides: Any) -> nn.Module:
    """Build a network whose tensors have shapes and no memory; ValueError as in `build_network`."""
    with without_memory():
        return build_network(definition, **overrides)


def check_size(network: nn.Module, height: int, width: int, *, least: int = 1) -> None:
    """Refuse an input size that a network does not take: it halves a frame several times, so sides are multiples.

    Height and width, in pixels, are multiples of the network's ``stride`` (without one it takes any), at least
    ``least``, and equal where it takes ``squares`` alone. Raises ValueError with a size that would do.
    """
    stride, squares = int(getattr(network, "stride", 1)), bool(getattr(network, "squares", False))
    if all(side % stride == 0 and side >= least for side in (height, width)) and (height == width or not squares):
        return
    near = [(height + width) / 2] * 2 if squares else [height, width]
    rows, columns = (max(-(-least // stride), round(side / stride)) * stride for side in near)
    at_least = f", at least {least}" if least > 1 else ""
    raise ValueError(
        f"the size is {height}x{width}, and {type(network).__name__} takes {'squares of ' * squares}multiples of "
        f"{stride}{at_least}; "
        f"{rows}x{columns} would do"
    )
