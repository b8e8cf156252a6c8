"""Find the description of a site's data; a job never carries a path."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from shared_components.federation.messages import Job, SiteRefusal

SITE_VARIABLE = "SURGFL_SITE_CONFIG"
SYNTHETIC = {
    "frames_per_video": 12, "videos": [4, 1, 1], "height": 256, "width": 320,
    "seed": 0, "tasks": [], "layouts": ["auto"], "clip": 1, "interval": 0.0, "dense": False,
    "set": "",
}  # fmt: skip
SERVER = "server"  # the name under which the server's own data are found
_LONGEST_LABEL = 200  # of 255 bytes that a file system allows


def find_site(name: str, *, local: Path, scenes: Path | None, job: Job, index: int) -> Site:
    """Load a site's `site.yaml`.

    Order of search: the environment variable ``SURGFL_SITE_CONFIG`` (a file, a folder with
    ``<site>/site.yaml`` or ``<site>.yaml``, or a path with ``{site}`` in it), then ``<local>/site.yaml``,
    then, in a simulator, a synthetic site rendered on the spot. Where the variable is set, a missing file is
    refused and never replaced by a synthetic site.

    Args:
        name: The site's name in the federation.
        local: The ``local`` folder of the site's FLARE workspace.
        scenes: Where a simulator renders synthetic sites, sized by the job's ``synthetic``; None in a deployment.
        job: What is run.
        index: The site's number, which chooses its look: names change nothing in the result.

    Raises:
        SiteRefusal: There is no description.
        SiteError: The description is wrong.
    """
    path = _configured(name) or local / "site.yaml"
    if not path.is_file() and scenes is not None and not os.environ.get(SITE_VARIABLE):
        path = _rendered(scenes, job, index, simulated=name == SERVER)
    if not path.is_file():
        raise SiteRefusal(
            f"site {name}: there is no description of its data at {path}; write one (docs/how-to/your-data.md) "
            f"or name it in the environment variable {SITE_VARIABLE}"
        )
    return load_site(path, name=name)


def _configured(name: str) -> Path | None:
    value = os.environ.get(SITE_VARIABLE)
    if not value:
        return None
    path = Path(value.replace("{site}", name)).expanduser().resolve()
    if not path.is_dir():
        if name == SERVER and "{site}" not in value:
            raise SiteRefusal(
                f"the server trains on data of its own, and {SITE_VARIABLE} names the one file {path}, a site's; "
                f"let it name a folder with {SERVER}/site.yaml, or a path with {{site}} in it"
            )
        return path
    nested = path / name / "site.yaml"
    return nested if nested.is_file() else path / f"{name}.yaml"


def _rendered(scenes: Path, job: Job, index: int, *, simulated: bool) -> Path:
    """Render the synthetic site of this number, unless an earlier task has done so.

    A server's own frames are ``simulated``: they look like computer graphics.
    """
    from shared_components.scenes.looks import SIMULATED
    from shared_components.scenes.site import plan_sites, write_site

    sizes = {**SYNTHETIC, **job.synthetic}
    if unknown := sorted(set(sizes) - set(SYNTHETIC)):
        raise SiteRefusal(f"job: synthetic has no key {unknown[0]!r}; known keys: {', '.join(SYNTHETIC)}")
    if sizes["set"] and not simulated:
        return _of_set(scenes / _label(sizes), sizes, index)
    kinds = {key: _values(sizes[key]) for key in ("tasks", "layouts")}
    plan = plan_sites(scenes / _label(sizes), sites=index + 1, seed=sizes["seed"], **kinds)[index]
    folder = plan.folder.with_name(SERVER) if simulated else plan.folder
    if not (folder / "site.yaml").is_file():
        write_site(
            folder,
            look=SIMULATED if simulated else plan.look,
            seed=plan.seed,
            layout=plan.layout,
            task=plan.task,
            videos=dict(zip(("train", "validation", "test"), sizes["videos"], strict=True)),
            **{key: value for key, value in sizes.items() if key not in ("seed", "videos", "set", *kinds)},
        )
    return folder / "site.yaml"


def _of_set(folder: Path, sizes: Mapping[str, Any], index: int) -> Path:
    """Render the site of this number in a set, which has its own looks, layouts, tasks and videos."""
    from shared_components.scenes.site_sets import write_set_site

    film = {"frames": sizes["frames_per_video"], "height": sizes["height"], "width": sizes["width"]}
    return write_set_site(folder, sizes["set"], index, seed=sizes["seed"], **film)


def _label(sizes: Mapping[str, object]) -> str:
    label = "-".join(f"{key}_{'_'.join(map(str, _values(sizes[key])))}" for key in sorted(sizes))
    return label if len(label) <= _LONGEST_LABEL else hashlib.sha256(label.encode()).hexdigest()


def _values(value: object) -> list:
    return list(value) if isinstance(value, (list, tuple)) else [value]
