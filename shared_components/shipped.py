"""The weights that a bundle ships: `models/model.safetensors`, and `models/model.json`, which says what they are.

Both come from `surgfl ship`. The card's hash is compared whenever the weights are used, so that a file of another
release, or half of a copy, is refused and never trained from.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from shared_components import bundle_config
from shared_components.checkpoints import CheckpointError

MODEL, FACTS = "models/model.safetensors", "models/model.json"
KEEPER = "models/.gitkeep"  # holds the folder where there are no weights


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def shipped_facts(bundle: str, folder: Path | None = None) -> dict[str, Any] | None:
    """Return what `model.json` of a bundle says; None where the bundle ships no weights.

    Args:
        bundle: its name.
        folder: of the bundles; default: the folder beside the package.

    Raises:
        CheckpointError: the file is no JSON with the hash of the weights.
    """
    path = (folder or bundle_config.bundles_folder()) / bundle / FACTS
    if not path.is_file():
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: is not valid JSON ({error}); run `surgfl ship` again") from error
    if not isinstance(facts, dict) or not isinstance(facts.get("sha256"), str):
        raise CheckpointError(f"{path}: names no 'sha256' of the weights; run `surgfl ship` again")
    return facts


def shipped_weights(bundle: str, folder: Path | None = None) -> Path:
    """Return the file of the weights that a bundle ships, which is the one that its `model.json` is about.

    Args as in `shipped_facts`.

    Raises:
        CheckpointError: the bundle ships none, or the file is not the card's.
    """
    facts = shipped_facts(bundle, folder)
    path = (folder or bundle_config.bundles_folder()) / bundle / MODEL
    if facts is None or not path.is_file():
        raise CheckpointError(
            f"bundle {bundle!r} ships no weights ({path if facts else path.parent / 'model.json'} does not exist); "
            "use start: random, or make some with `surgfl pretrain` and `surgfl ship`"
        )
    if (found := sha256_of(path)) != facts["sha256"]:
        raise CheckpointError(
            f"{path}: weights whose hash is not the card's ({found[:8]}, and {facts['sha256'][:8]} in model.json); "
            "take both files from one release"
        )
    return path
