"""What a plain `pip install surgfl` leaves out, and the extra that brings it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "fl": ("nvflare", "opacus", "tensorboard", "cryptography"),
    "monai": ("monai", "ignite", "tensorboard", "fire"),
}
"""Modules by the extra of setup.cfg that brings them; where several do, the first is named."""
NOT_ON_WINDOWS = "fcntl"


def remedy(module: str | None) -> str | None:
    """Say in one sentence how to get a module that cannot be imported; None where no extra brings it."""
    package = (module or "").partition(".")[0]
    if package == NOT_ON_WINDOWS:
        return "this locks files, which it does on Linux and macOS alone; on Windows run it in WSL"
    for extra, modules in EXTRAS.items():
        if package in modules:
            return f"{package} is not installed, which this needs; run: pip install 'surgfl[{extra}]'"
    return None


def require_federation() -> None:
    """Raise ValueError with the remedy where what a federation in this process needs is absent; import nothing."""
    for module in (NOT_ON_WINDOWS, "cryptography", "tensorboard"):
        if importlib.util.find_spec(module) is None:
            raise ValueError(remedy(module))
