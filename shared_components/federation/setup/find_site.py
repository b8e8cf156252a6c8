"""Find the description of a site's data; a job never carries a path."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_components.data.site import Site
from shared_components.data.site_file import SITE_VARIABLE, load_site
from shared_components.federation.messages import Job, SiteRefusal

SYNTHETIC = {
    "frames_per_video": 12, "videos": [4, 1, 1], "height": 256, "width": 320,
    "seed": 0, "tasks": [], "layouts": ["auto"], "clip": 1, "interval": 0.0, "dense": False,
    "set": "",
}  # fmt: skip
SERVER = "server"  # name of the server's own site.yaml
_LONGEST_LABEL = 200  # of 255 bytes that a file system allows


def find_site(name: str, *, local: Path, scenes: Path | None, job: Job, index: int) -> Site:
    """Load a site's `site.yaml`.

    Order of search: the environment variable ``SURGFL_SITE_CONFIG`` (a file, a folder with ``<site>/site.yaml`` or
    ``<site>.yaml``, or a path with ``{site}`` in it), then ``<local>/site.yaml``, then, in a simulator, a synthetic
    site that is rendered now. If the variable is set, a missing file is an error.

    ``local`` is the folder of the site's FLARE workspace. ``scenes`` is the folder for synthetic sites, sized by the
    job's ``synthetic``; None in a deployment. ``index`` is the site's number, which selects its look. SiteRefusal:
    there is no description. SiteError: the description is wrong.
    """
    path = _configured(name) or local / "site.yaml"
    if not path.is_file() and scenes is not None and not os.environ.get(SITE_VARIABLE):
        path = _rendered(scenes, job, index, simulated=name == SERVER)
    if not path.is_file():
        remedy = f"write one (docs/how-to/your-data.md) or name it in the environment variable {SITE_VARIABLE}"
        raise SiteRefusal(f"site {name}: there is no description of its data at {path}; {remedy}")
    return load_site(path, name=name)


def _configured(name: str) -> Path | None:
    value = os.environ.get(SITE_VARIABLE)
    if not value:
        return None
    path = Path(value.replace("{site}", name)).expanduser().resolve()
    if path.is_dir():
        nested = path / name / "site.yaml"
        return nested if nested.is_file() else path / f"{name}.yaml"
    if name == SERVER and "{site}" not in value:
        raise SiteRefusal(
            f"the server trains on data of its own, and {SITE_VARIABLE} names the one file {path}, a site's; "
            f"let it name a folder with {SERVER}/site.yaml, or a path with {{site}} in it"
        )
    return path


def _rendered(scenes: Path, job: Job, index: int, *, simulated: bool) -> Path:
    """Render the synthetic site of this number once; a server's own frames (``simulated``) look like graphics."""
    from shared_components.scenes.looks import SIMULATED
    from shared_components.scenes.site import plan_sites, write_site
    from shared_components.scenes.site_sets import write_set_site

    sizes: dict[str, Any] = {**SYNTHETIC, **job.synthetic}
    if unknown := sorted(set(sizes) - set(SYNTHETIC)):
        raise SiteRefusal(f"job: synthetic has no key {unknown[0]!r}; known keys: {', '.join(SYNTHETIC)}")
    folder, seed = scenes / _label(sizes), sizes["seed"]
    if sizes["set"] and not simulated:
        film = {"frames": sizes["frames_per_video"], "height": sizes["height"], "width": sizes["width"]}
        return write_set_site(folder, sizes["set"], index, seed=seed, **film)
    kinds = {key: _values(sizes[key]) for key in ("tasks", "layouts")}
    plan = plan_sites(folder, sites=index + 1, seed=seed, **kinds)[index]
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


def _label(sizes: Mapping[str, object]) -> str:
    label = "-".join(f"{key}_{'_'.join(map(str, _values(sizes[key])))}" for key in sorted(sizes))
    return label if len(label) <= _LONGEST_LABEL else hashlib.sha256(label.encode()).hexdigest()


def _values(value: object) -> list:
    return list(value) if isinstance(value, (list, tuple)) else [value]
