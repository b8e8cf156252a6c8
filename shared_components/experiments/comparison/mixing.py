"""Sites that train on the server's own frames besides theirs (FedST's Figures 5 and 7)."""

from __future__ import annotations

from pathlib import Path

import yaml

from shared_components.common.atomic import write_text
from shared_components.data.site import SiteError
from shared_components.data.site_file import PATHS, load_site
from shared_components.experiments.comparison.plan import Run
from shared_components.federation.messages import FederationError

ADDS = "also_trains_on"


def mixed_sites(run: Run, folder: Path) -> dict[str, str]:
    """Write a site.yaml for every site of a run that adds the server's frames to its own; return them by name.

    Args:
        run: Its ``server`` names the frames.
        folder: They are written to ``<folder>/sites/<site>/site.yaml``.

    Raises:
        FederationError: A site adds frames of another one already, or cannot add these.
    """
    return {name: _mixed(Path(path), name, run.server, folder / "sites") for name, path in run.sites.items()}


def _mixed(path: Path, name: str, server: str, folder: Path) -> str:
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    if ADDS in config:
        raise FederationError(
            f"{path}: says '{ADDS}' itself, and this row adds the server's frames; leave the key out for it"
        )
    here = path.resolve().parent
    absolute = {key: str(here / Path(config[key]).expanduser()) for key in PATHS if key in config}
    file = folder / name / "site.yaml"
    write_text(file, yaml.safe_dump({**config, **absolute, ADDS: server}, sort_keys=False))
    try:
        load_site(file, name=name)
    except SiteError as error:
        raise FederationError(str(error)) from error
    return str(file)
