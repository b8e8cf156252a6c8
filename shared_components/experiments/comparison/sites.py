"""Sites of a comparison: the user's own, or synthetic ones that are hard on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from shared_components.common.atomic import write_text
from shared_components.common.plain_yaml import read_yaml
from shared_components.common.progress import under
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import PATHS, load_site
from shared_components.data.splits import CHOLEC80, LEFT_OUT, choose_few_videos, remove_test_videos
from shared_components.experiments.comparison.plan import HELD_OUT, Hospitals, Run, Scale
from shared_components.federation.messages import FederationError, folder_name
from shared_components.federation.setup.find_site import SERVER
from shared_components.scenes.looks import SIMULATED
from shared_components.scenes.site import task_of, write_site
from shared_components.scenes.site_sets import UNSEEN, site_set, write_set_site

LOOKS = ("narrowband", "fluorescence", "fibrescope")
LAYOUTS = ("endovis2017", "endovis2018", "endovis2017")
CLIP_LOOKS = ("narrowband", "fluorescence", "crimson", "fibrescope")
CLIP_LAYOUTS = ("endovis2017", "endovis2018", "sar_rarp50", "endovis2017")
HELD_OUT_LOOK = "ivory"
ADDS = "also_trains_on"  # key of a site.yaml
RESERVED = (SERVER, HELD_OUT)  # folders of a run beside its sites'

Plan = tuple[str, str, str, tuple[int, int, int]]
"""A site's name, look and layout, and its videos for train, validation and test."""


def synthetic_sites(
    folder: Path, scale: Scale, *, clip: tuple[int, float] = (1, 0.0), held_out_layout: str = "endovis2017"
) -> tuple[dict[str, Path], Path]:
    """Render the missing sites of a comparison, and return their site.yaml by name and the held-out site's.

    Looks are far apart and data scarce. site-1 has narrow-band light, site-2 a fluorescent dye in near-infrared; the
    last looks through a bundle of fibres behind a small round aperture, and has half of their frames. The shipped
    weights have learnt from none of these. The held-out site is beige bowel in smoke, a look that no site trains on.
    With clips (frames, seconds between them) there are four sites, as FedST has; the third is white light and blood.
    """
    plans = _plans(scale, clips=clip[0] > 1)
    outside = HELD_OUT if held_out_layout == "endovis2017" else f"{HELD_OUT}-{held_out_layout}"
    plans.append((outside, HELD_OUT_LOOK, held_out_layout, (1, 1, scale.videos[0][2])))
    files = {plan[0]: _rendered(folder, scale, plan, seed=100 + n, clip=clip) for n, plan in enumerate(plans)}
    held_out = files.pop(outside)
    return files, held_out


def hospital_sites(folder: Path, scale: Scale, hospitals: Hospitals) -> dict[str, Path]:
    """Render the missing ones of a preset's own sites, and return their site.yaml by name."""
    rows = zip(hospitals.sites, scale.videos, strict=True)
    plans = [(f"site-{n}", look, layout, videos) for n, ((look, layout), videos) in enumerate(rows, start=1)]
    return {
        plan[0]: _rendered(folder, scale, plan, seed=100 + n, clip=(1, 0.0), task=hospitals.task)
        for n, plan in enumerate(plans)
    }


def set_sites(folder: Path, scale: Scale, name: str) -> tuple[dict[str, Path], Path | None]:
    """Render the missing sites of a set, and return their site.yaml by name, and that of the one called `UNSEEN`."""
    size = {"frames": scale.frames_per_video, "height": scale.height, "width": scale.width}
    files = {}
    for place, site in enumerate(site_set(name, frames=scale.frames_per_video)):
        with under(site.name):
            files[site.name] = write_set_site(folder, name, place, seed=100, **size)
    return files, files.pop(UNSEEN, None)


def server_site(folder: Path, scale: Scale) -> Path:
    """Render the server's own frames, unless they are there: flat computer graphics, as many as four sites train on.

    One video more is to validate. They are single images, laid out as the Sisvse data set that FedST's server has.
    """
    videos = sum(train for *_, (train, *_others) in _plans(scale, clips=True))
    plan = (SERVER, SIMULATED, "sisvse", (videos, 1, 0))
    return _rendered(folder, scale, plan, seed=99, clip=(1, 0.0))


def _plans(scale: Scale, *, clips: bool) -> list[Plan]:
    first, *rest = scale.videos
    looks, layouts = (CLIP_LOOKS, CLIP_LAYOUTS) if clips else (LOOKS, LAYOUTS)
    videos = (first, first, *rest) if clips else scale.videos
    names = [f"site-{number + 1}" for number in range(len(looks))]
    return list(zip(names, looks, layouts, videos, strict=True))


def _rendered(folder: Path, scale: Scale, plan: Plan, *, seed: int, clip: tuple[int, float], task: str = "") -> Path:
    name, look, layout, videos = plan
    file = folder / name / "site.yaml"
    if not file.is_file():
        with under(name):
            write_site(
                folder / name,
                look=look,
                seed=seed,
                layout=layout,
                task=task or task_of(layout),
                videos=dict(zip(("train", "validation", "test"), videos, strict=True)),
                frames_per_video=scale.frames_per_video,
                height=scale.height,
                width=scale.width,
                clip=clip[0],
                interval=clip[1],
            )
    return file


def server_file(path: Path) -> Path:
    """Return the site.yaml of the server's own frames, given it or its folder; SiteError: it is missing or wrong."""
    return load_site(path, name=SERVER).path.resolve()


def own_sites(folder: Path, held_out: str) -> tuple[dict[str, Path], Path | None]:
    """Find ``<folder>/<site>/site.yaml``; the site that ``held_out`` names takes no part in training.

    That is one of the sites, or the path of a site.yaml elsewhere; empty for none.

    Raises:
        ValueError: There is no site, or none of that name, or a name cannot be a site's.
    """
    files = {path.parent.name: path.resolve() for path in sorted(folder.glob("*/site.yaml"))}
    apart = files.get(held_out) or _elsewhere(held_out)
    files = {name: path for name, path in files.items() if path != apart}
    if held_out and apart is None:
        raise ValueError(
            f"{folder}: holds no site {held_out!r}; there are {', '.join(files) or 'none'}, "
            "and no site.yaml has that path"
        )
    if not files:
        raise ValueError(f"{folder}: holds no <site>/site.yaml to train on; give the folder of the sites")
    for name in files:
        folder_name("site", name)
        if name in RESERVED:
            raise ValueError(f"{folder / name}: a site cannot be called {name!r} here; rename its folder")
    return files, apart


def _elsewhere(held_out: str) -> Path | None:
    path = Path(held_out).expanduser()
    path = path / "site.yaml" if held_out and path.is_dir() else path
    return path.resolve() if path.is_file() else None


def changed_sites(run: Run, folder: Path) -> dict[str, str]:
    """Write ``<folder>/sites/<site>/site.yaml`` for every site of a run, with what its row changes; return the files.

    The server's frames are added to its own (FedST's Figures 5 and 7), a few of its training videos are kept, or those
    of Cholec80 left out that a later task is tested on (FL-EndoViT).

    Raises:
        FederationError: A site adds frames of another one already, cannot add these, or has too few videos.
    """
    return {name: _changed(Path(path), name, run, folder / "sites") for name, path in run.sites.items()}


def _changed(path: Path, name: str, run: Run, folder: Path) -> str:
    config = read_yaml(path.read_text(encoding="utf-8"))
    if run.variant.data.server_frames and ADDS in config:
        raise FederationError(
            f"{path}: says '{ADDS}' itself, and this row adds the server's frames; leave the key out for it"
        )
    here = path.resolve().parent
    changes: dict[str, Any] = {key: str(here / Path(config[key]).expanduser()) for key in PATHS if key in config}
    file = folder / name / "site.yaml"
    try:
        if run.variant.data.videos or run.variant.data.leaves_out:
            changes["split"] = {**config["split"], "train": _kept(load_site(path, name=name), name, run)}
        if run.variant.data.server_frames:
            changes[ADDS] = run.server
        write_text(file, yaml.safe_dump({**config, **changes}, sort_keys=False))
        load_site(file, name=name)
    except SiteError as error:
        raise FederationError(str(error)) from error
    return str(file)


def _kept(site: Site, name: str, run: Run) -> list[Any]:
    """Return the entries of a site's training split that a row keeps."""
    parts, data = site.split.get("train", ()), run.variant.data
    videos = list(dict.fromkeys(part.video for part in parts))
    if data.leaves_out:
        videos = _untested(site, name, videos, data.leaves_out)
    if data.videos:
        task, dataset = next(iter(run.open_bundle().tasks)), site.dataset if site.public else ""
        try:
            videos = choose_few_videos(videos, data.videos, run.seed, dataset=dataset, task=task)
        except ValueError as error:
            raise SiteError(f"{site.path}: {error}") from error
    if not videos:
        raise SiteError(f"{site.path}: trains on no video that {run.variant.label!r} may see; add others under 'train'")
    whole = {part: part.video if part.stop is None else {part.video: [part.start, part.stop]} for part in parts}
    return [entry for part, entry in whole.items() if part.video in videos]


def _untested(site: Site, name: str, videos: list[str], task: str) -> list[str]:
    """Return the videos that a pre-training before a task may see: of rendered Cholec80 as large a share, the first."""
    if site.public:
        return remove_test_videos(videos, site.dataset, task)
    share = len(LEFT_OUT[task]) / sum(map(len, CHOLEC80.values())) if name == "cholec80" else 0.0
    return videos[: len(videos) - round(share * len(videos))]
