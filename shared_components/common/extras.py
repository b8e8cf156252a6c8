"""Name the extra of `pip install surgfl` that installs a missing module."""

import importlib.util
from collections.abc import Mapping

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "fl": ("nvflare", "opacus", "tensorboard", "cryptography"),
    "monai": ("monai", "ignite", "tensorboard", "fire"),
    "tracking": ("mlflow", "wandb", "alembic"),
    "labels": ("pycocotools", "nrrd"),
}
"""Modules by the extra of setup.cfg that installs them; the first extra with a module is suggested."""
NOT_ON_WINDOWS = "fcntl"


def remedy(module: str | None) -> str | None:
    """Return a sentence on how to install a missing module, or None if no extra installs it."""
    package = (module or "").partition(".")[0]
    if package == NOT_ON_WINDOWS:
        return "file locks work only on Linux and macOS; on Windows run this in WSL"
    for extra, modules in EXTRAS.items():
        if package in modules:
            return f"{package} is not installed; run: pip install 'surgfl[{extra}]'"
    return None


def require_federation() -> None:
    """Raise ValueError with the remedy if a module that a federation needs is missing; import nothing."""
    for module in (NOT_ON_WINDOWS, "cryptography", "tensorboard"):
        if importlib.util.find_spec(module) is None:
            raise ValueError(remedy(module))
