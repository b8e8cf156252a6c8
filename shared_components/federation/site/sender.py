"""The site and run that an update is sent from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared_components.federation.privacy.gaussian import Randomness
from shared_components.federation.secure_sums.identity import Identity


@dataclass(frozen=True)
class Sender:
    """What an upload needs of its site and run."""

    name: str
    run: str
    folder: Path  # the site's, in the run
    identity: Identity | None  # the startup kit that vouches for the site's key of secure sums
    random: Randomness  # source of the noise
