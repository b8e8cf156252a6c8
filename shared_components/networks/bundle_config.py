"""Find the bundles, and build their networks from plain values without executing a config's expressions."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from shared_components.common.arguments import between
from shared_components.common.plain_yaml import read_own_yaml
from shared_components.common.schema import short_repr
from shared_components.networks.adapter import adapted
from shared_components.networks.network_class import is_ours, make, network_class, without_memory


def bundles_folder() -> Path:
    """Return the folder of the bundles, next to the package."""
    return Path(__file__).resolve().parents[2] / "bundles"


def bundle_names() -> list[str]:
    """Return the names of all bundles."""
    return sorted(p.name for p in bundles_folder().iterdir() if (p / "configs" / "train.yaml").is_file())


def bundle_for(method: str) -> str:
    """Return the bundle with a method's name; `pvt_fpn` if there is none."""
    own = bundles_folder() / method / "configs" / "train.yaml"
    return method if own.is_file() else "pvt_fpn"


def weights_of(name: str) -> str:
    """Return the bundle with the shipped weights for ``start: rendered``: the key `weights_of`, else the bundle itself.

    Raises ValueError for an unknown bundle.
    """
    path = bundles_folder() / name / "configs" / "train.yaml"
    source = (read_config(path.read_text("utf-8")).get("weights_of") if path.is_file() else None) or name
    if source != name and source not in bundle_names():
        raise ValueError(f"{path}: weights_of is {short_repr(source)}; use one of {', '.join(bundle_names())}")
    return str(source)


@functools.lru_cache(maxsize=16)
def read_config(text: str) -> Mapping[str, Any]:
    """Read a bundle's config without evaluating it; cached, since a site reads it a dozen times per round."""
    return read_own_yaml(text)


def build_network(definition: Mapping[str, Any], **overrides: Any) -> nn.Module:
    """Build the network of a `network_def`; networks of other libraries are adapted, see `adapter.adapted`.

    Raises ValueError if the class is not allowed, see `network_class`, or refuses the arguments.
    """
    kind = network_class(definition)
    if not is_ours(kind):
        channels = overrides.pop("out_channels", None)
        return adapted({**definition, **overrides}, channels)
    return make(kind, {k: v for k, v in definition.items() if not k.startswith("_")} | overrides)


def weightless(definition: Mapping[str, Any], **overrides: Any) -> nn.Module:
    """Build a network on the meta device, without memory for its tensors; ValueError as in `build_network`."""
    with without_memory():
        return build_network(definition, **overrides)


def check_size(network: nn.Module, height: int, width: int, *, least: int = 1) -> None:
    """Raise ValueError, with a valid size, if a network does not take frames of height x width pixels.

    Both sides are at least ``least`` and multiples of the network's ``stride``; they are equal if it has ``squares``.
    """
    stride, squares = int(getattr(network, "stride", 1)), bool(getattr(network, "squares", False))
    if all(side % stride == 0 and side >= least for side in (height, width)) and (height == width or not squares):
        return
    near = [(height + width) / 2] * 2 if squares else [height, width]
    rows, columns = (max(-(-least // stride), round(side / stride)) * stride for side in near)
    raise ValueError(
        f"the size is {height}x{width}, but {type(network).__name__} takes {'squares of ' * squares}multiples of "
        f"{stride}{f', at least {least}' if least > 1 else ''}; use {rows}x{columns}"
    )


def check_side(network: str, size: int, stride: int, *, least: int = 0) -> None:
    """Raise ValueError unless the argument `size` is a whole multiple of the stride and at least `least`."""
    between(network, "size", size, least, whole=True)
    if size % stride:
        near = max(1, round(size / stride)) * stride
        raise ValueError(f"{network}: size is {size}; give a multiple of {stride}, such as {near}")
