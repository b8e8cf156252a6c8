"""Find the description of a site's data; a job never carries a path."""

from __future__ import annotations

import os
from pathlib import Path

from shared_components.data.sites import Site, load_site
from shared_components.federation.messages import Job, SiteRefusal

SITE_VARIABLE = "SURGFL_SITE_CONFIG"


def find_site(name: str, *, local: Path, scenes: Path | None, job: Job, index: int) -> Site:
    """Load a site's `site.yaml`.

    Order of search: the environment variable ``SURGFL_SITE_CONFIG`` (a file, a folder with
    ``<site>/site.yaml`` or ``<site>.yaml``, or a path with ``{site}`` in it), then ``<local>/site.yaml``,
    then, in a simulator, a synthetic site rendered on the spot.

    Args:
        name: The federation's name of the site.
        local: The ``local`` folder of the site's FLARE workspace.
        scenes: Where a simulator renders synthetic sites; None in a real deployment.
        job: Its ``synthetic`` section sizes the rendered site.
        index: The site's number, which chooses its look: names change nothing in the result.

    Raises:
        SiteRefusal: There is no description.
        SiteError: The description is wrong.
    """
    path = _configured(name) or local / "site.yaml"
    if not path.is_file() and scenes is not None and not os.environ.get(SITE_VARIABLE):
        path = _rendered(scenes, job, index)
    if not path.is_file():
        raise SiteRefusal(
            f"site {name}: there is no description of its data at {path}; write one (README, 'Your own data') "
            f"or name it in the environment variable {SITE_VARIABLE}"
        )
    return load_site(path, name=name)


def _configured(name: str) -> Path | None:
    value = os.environ.get(SITE_VARIABLE)
    if not value:
        return None
    path = Path(value.replace("{site}", name)).expanduser().resolve()
    if not path.is_dir():
        return path
    nested = path / name / "site.yaml"
    return nested if nested.is_file() else path / f"{name}.yaml"


def _rendered(scenes: Path, job: Job, index: int) -> Path:
    """Render the synthetic site of this number, unless an earlier task has done so."""
    from shared_components.data.synthetic import render_site

    sizes = dict(job.synthetic)
    label = "-".join(f"{key}{_flat(value)}" for key, value in sorted(sizes.items()))
    folder = scenes / (label or "default") / f"site-{index + 1}"
    if not (folder / "site.yaml").is_file():
        render_site(folder, index=index, **sizes)
    return folder / "site.yaml"


def _flat(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
