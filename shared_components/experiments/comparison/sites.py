"""Find or render the sites of a comparison; synthetic sites have few videos and different looks."""

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
ADDS = "also_trains_on"  # key of site.yaml
RESERVED = (SERVER, HELD_OUT)  # folders of a run beside its sites' folders

Plan = tuple[str, str, str, tuple[int, int, int]]
"""Name, look and layout of a site, and its numbers of training, validation and test videos."""


def synthetic_sites(
    folder: Path, scale: Scale, *, clip: tuple[int, float] = (1, 0.0), held_out_layout: str = "endovis2017"
) -> tuple[dict[str, Path], Path]:
    """Render the missing sites; return site.yaml by site and the held-out site's site.yaml.

    The shipped weights have not seen these looks. The last site is a fibrescope with a small aperture and half the
    frames. Clips (frames, seconds between them) need four sites, as FedST has.
    """
    plans = _plans(scale, clips=clip[0] > 1)
    outside = HELD_OUT if held_out_layout == "endovis2017" else f"{HELD_OUT}-{held_out_layout}"
    plans.append((outside, HELD_OUT_LOOK, held_out_layout, (1, 1, scale.videos[0][2])))
    files = {plan[0]: _rendered(folder, scale, plan, seed=100 + n, clip=clip) for n, plan in enumerate(plans)}
    held_out = files.pop(outside)
    return files, held_out


def hospital_sites(folder: Path, scale: Scale, hospitals: Hospitals) -> dict[str, Path]:
    """Render the missing sites of a preset, and return site.yaml by site."""
    files = {}
    for n, ((look, layout), videos) in enumerate(zip(hospitals.sites, scale.videos, strict=True)):
        plan = (f"site-{n + 1}", look, layout, videos)
        files[plan[0]] = _rendered(folder, scale, plan, seed=100 + n, task=hospitals.task)
    return files


def set_sites(folder: Path, scale: Scale, name: str) -> tuple[dict[str, Path], Path | None]:
    """Render the missing sites of a set, and return site.yaml by site and that of the site `UNSEEN`, if any."""
    size = {"frames": scale.frames_per_video, "height": scale.height, "width": scale.width}
    files = {}
    for place, site in enumerate(site_set(name, frames=scale.frames_per_video)):
        with under(site.name):
            files[site.name] = write_set_site(folder, name, place, seed=100, **size)
    return files, files.pop(UNSEEN, None)


def server_site(folder: Path, scale: Scale) -> Path:
    """Render the server's frames if they are missing: flat computer graphics as in the Sisvse data set of FedST.

    They have as many training videos as four sites together, and one validation video.
    """
    videos = sum(train for *_, (train, *_others) in _plans(scale, clips=True))
    return _rendered(folder, scale, (SERVER, SIMULATED, "sisvse", (videos, 1, 0)), seed=99)


def _plans(scale: Scale, *, clips: bool) -> list[Plan]:
    first, *rest = scale.videos
    looks, layouts = (CLIP_LOOKS, CLIP_LAYOUTS) if clips else (LOOKS, LAYOUTS)
    videos = (first, first, *rest) if clips else scale.videos
    names = [f"site-{number + 1}" for number in range(len(looks))]
    return list(zip(names, looks, layouts, videos, strict=True))


def _rendered(
    folder: Path, scale: Scale, plan: Plan, *, seed: int, clip: tuple[int, float] = (1, 0.0), task: str = ""
) -> Path:
    name, look, layout, videos = plan
    file = folder / name / "site.yaml"
    if not file.is_file():
        with under(name):
            write_site(
                folder / name, look=look, seed=seed, layout=layout, task=task or task_of(layout),
                videos=dict(zip(("train", "validation", "test"), videos, strict=True)),
                frames_per_video=scale.frames_per_video, height=scale.height, width=scale.width,
                clip=clip[0], interval=clip[1],
            )  # fmt: skip
    return file


def server_file(path: Path) -> Path:
    """Return the site.yaml of the server's frames from its path or folder; raise SiteError if it is invalid."""
    return load_site(path, name=SERVER).path.resolve()


def own_sites(folder: Path, held_out: str) -> tuple[dict[str, Path], Path | None]:
    """Return ``<folder>/<site>/site.yaml`` by site, and the held-out site: a name, or the path of another site.yaml.

    Raise ValueError if a site does not exist or has a reserved name.
    """
    files = {path.parent.name: path.resolve() for path in sorted(folder.glob("*/site.yaml"))}
    outside = files.get(held_out) or _site_file(held_out)
    files = {name: path for name, path in files.items() if path != outside}
    if held_out and outside is None:
        raise ValueError(f"{folder} has no site {held_out!r}, only {', '.join(files) or 'none'}; correct --held-out")
    if not files:
        raise ValueError(f"{folder} contains no <site>/site.yaml for training; give the folder of the sites")
    for name in files:
        folder_name("site", name)
        if name in RESERVED:
            raise ValueError(f"{folder / name}: the name {name!r} is reserved; rename the folder")
    return files, outside


def _site_file(held_out: str) -> Path | None:
    path = Path(held_out).expanduser()
    path = path / "site.yaml" if held_out and path.is_dir() else path
    return path.resolve() if path.is_file() else None


def changed_sites(run: Run, folder: Path) -> dict[str, str]:
    """Write ``<folder>/sites/<site>/site.yaml`` with the row's changes for each site of a run; return the files.

    Raise FederationError if a site already adds frames, cannot add these, or has too few videos.
    """
    return {name: _changed(Path(path), name, run, folder / "sites") for name, path in run.sites.items()}


def _changed(path: Path, name: str, run: Run, folder: Path) -> str:
    config, data = read_yaml(path.read_text(encoding="utf-8")), run.variant.data
    if data.server_frames and ADDS in config:
        raise FederationError(f"{path} contains '{ADDS}', but this row adds the server's frames; remove the key")
    root = path.resolve().parent
    changes: dict[str, Any] = {key: str(root / Path(config[key]).expanduser()) for key in PATHS if key in config}
    file = folder / name / "site.yaml"
    try:
        if data.videos or data.leaves_out:
            changes["split"] = {**config["split"], "train": _training_entries(load_site(path, name=name), name, run)}
        if data.server_frames:
            changes[ADDS] = run.server
        write_text(file, yaml.safe_dump({**config, **changes}, sort_keys=False))
        load_site(file, name=name)
    except SiteError as error:
        raise FederationError(str(error)) from error
    return str(file)


def _training_entries(site: Site, name: str, run: Run) -> list[Any]:
    """Return the entries of a site's training split that a row keeps."""
    parts, data = site.split.get("train", ()), run.variant.data
    videos = list(dict.fromkeys(part.video for part in parts))
    if data.leaves_out:
        videos = _without_tested(site, name, videos, data.leaves_out)
    if data.videos:
        task, dataset = next(iter(run.open_bundle().tasks)), site.dataset if site.public else ""
        try:
            videos = choose_few_videos(videos, data.videos, run.seed, dataset=dataset, task=task)
        except ValueError as error:
            raise SiteError(f"{site.path}: {error}") from error
    if not videos:
        raise SiteError(f"{site.path}: row {run.variant.label!r} leaves no training video; add videos to 'train'")
    entries = {part: part.video if part.stop is None else {part.video: [part.start, part.stop]} for part in parts}
    return [entry for part, entry in entries.items() if part.video in videos]


def _without_tested(site: Site, name: str, videos: list[str], task: str) -> list[str]:
    """Remove the videos that test a later task; for the rendered Cholec80, remove the same share from the end."""
    if site.public:
        return remove_test_videos(videos, site.dataset, task)
    share = len(LEFT_OUT[task]) / sum(map(len, CHOLEC80.values())) if name == "cholec80" else 0.0
    return videos[: len(videos) - round(share * len(videos))]
