"""Read, check and write a site's `site.yaml`; `MEANINGS` and docs/reference/site-yaml.md describe its keys."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from shared_components.common.atomic import atomically
from shared_components.common.plain_yaml import beside, read_own_yaml
from shared_components.common.schema import check_keys, check_values, nearest, short_repr
from shared_components.data.custom.description import KEYS as OWN_KEYS
from shared_components.data.custom.description import KINDS, describe
from shared_components.data.files.classes import CLASS_MAPS, LABELS, name_of, readable_as
from shared_components.data.files.images import read_yaml_file
from shared_components.data.site import (
    PUBLISHABLE,
    SPLITS,
    WITHHOLDABLE,
    Site,
    SiteError,
    Source,
    VideoRange,
    source_names,
    unfit,
)

MAX_QUARANTINE = 0.2
SITE_VARIABLE = "SURGFL_SITE_CONFIG"  # environment variable with the path of site.yaml
_DEFAULT_TARGETS = {"triplets": "triplets", "phases": "phase"}  # by task; other tasks use the data set's first target
_MAX_NAME = 100  # letters
_TEXT = Meta(description="write text, in quotes if it looks like a number")
KEYS: Mapping[str, Any] = {
    "dataset": Any,  # values of `Any` are checked by the code that reads them
    "root": Annotated[str, Meta(min_length=1, description="write the folder of the dataset")],
    "split": Annotated[dict[Any, Any], Meta(description=f"write lists of videos under {', '.join(SPLITS)}")],
    "name": Annotated[str, _TEXT],
    "classes": Any,
    "task": Annotated[str, _TEXT],
    "frame_interval": Annotated[int, Meta(ge=1, le=10**9)],
    "history": bool,
    "rate": Annotated[float, Meta(gt=0, le=1e9, description="write the frame numbers per second, such as 25")],
    "text": Annotated[str, _TEXT],
    "text_vectors": Annotated[
        str,
        Meta(pattern=r"\.safetensors\Z", description="write a file of text vectors, such as my-vectors.safetensors"),
    ],
    "text_encoder": Annotated[str, Meta(min_length=1, description="write the folder of a text encoder")],
    "publish": Annotated[list[Any], Meta(description="write a list: [style], or [] for nothing")],
    "withhold": Annotated[list[Any], Meta(description="write a list: [loss], or [] for nothing")],
    "quarantine": Annotated[
        float, Meta(ge=0, le=MAX_QUARANTINE, description=f"write a share of the frames from 0 to {MAX_QUARANTINE}")
    ],
    "also_trains_on": Annotated[str, Meta(min_length=1, description="write the path of another site.yaml")],
    **OWN_KEYS,
}
MEANINGS = msgspec.convert(read_own_yaml(beside(__file__, "site_keys.yaml")), dict[str, tuple[str, str]])
"""Default and meaning of each key."""
PATHS = ("root", "text_vectors", "text_encoder", "also_trains_on")  # keys of paths, maybe relative to the file
_REMEDY = "correct the path, or leave the key out"
_OPTIONAL_PATHS = {
    "text_vectors": ("file", f"make it with `surgfl text-vectors`, {_REMEDY}"),
    "text_encoder": ("folder", f"copy the encoder there, {_REMEDY}"),
}


def load_site(path: Path | str, *, name: str | None = None) -> Site:
    """Read and check a `site.yaml`, or the site.yaml of a folder; `check_site` checks the data.

    ``name`` is the federation's name of the site, used if the file has none. A SiteError has the file, the key, and
    what to do, in one sentence.
    """
    path = Path(path)
    path = path / "site.yaml" if path.is_dir() else path
    config = _read_mapping(path)
    try:
        return _site(path, config, name)
    except SiteError:
        raise
    except ValueError as error:
        raise SiteError(f"{path}: {error}") from error


def write_site(out: Path, config: Mapping[str, Any]) -> None:
    """Write a valid site.yaml; for an invalid one, raise a SiteError and keep the old file."""
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    try:
        with atomically(out) as beside:
            beside.write_text(text, encoding="utf-8")
            load_site(beside)
    except SiteError as error:
        raise SiteError(str(error).replace(str(beside), str(out))) from error


def write_sites(out: Path, configs: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write ``out/<name>/site.yaml`` for each site and return the files; SiteError if a file exists."""
    files = [out / config["name"] / "site.yaml" for config in configs]
    if old := [file for file in files if file.exists()]:
        raise SiteError(f"{old[0]}: is there already; give --out another folder")
    for file, config in zip(files, configs, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_site(file, config)
    return files


def folders_without_site(folder: Path) -> list[str]:
    """Return the names of the folders without a site.yaml; empty if no folder has one."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    missing = [path.name for path in folders if not (path / "site.yaml").is_file()]
    return missing if len(missing) < len(folders) else []


def _read_mapping(path: Path) -> dict[Any, Any]:
    try:
        config = read_yaml_file(path, error=SiteError)
    except FileNotFoundError:
        raise SiteError(f"{path}: no such file; write a site.yaml there") from None
    if not isinstance(config, dict):
        raise SiteError(f"{path}: needs 'key: value' lines, such as 'dataset: endovis2017'")
    return config


def _site(path: Path, config: Mapping[Any, Any], name: str | None) -> Site:
    check_keys(KEYS, config, required=("dataset", "root", "split"))
    dataset = _one_of("dataset", config["dataset"], source_names())
    check_values(KEYS, config, key="'{}'")
    root = _existing(path, config, "root", "folder", "mount it or correct the path")
    source, classes = _source(dataset, config)
    paths: dict[str, Any] = {
        key: _existing(path, config, key, *words) for key, words in _OPTIONAL_PATHS.items() if key in config
    }
    site = Site(
        name=_name(config.get("name") or name or path.resolve().parent.name),
        source=source, root=root, classes=classes, path=path, **paths,
        split=_split(config["split"], source.reader.videos(root)),
        task=config.get("task", ""), text=config.get("text", ""),
        frame_interval=config.get("frame_interval", 1), history=config.get("history", True),
        rate=float(config["rate"]) if "rate" in config else source.reader.RATE,
        publish=_chosen("publish", config.get("publish", ["style"]), PUBLISHABLE),
        withhold=_chosen("withhold", config.get("withhold", []), WITHHOLDABLE),
        quarantine=float(config.get("quarantine", 0.0)),
    )  # fmt: skip
    return replace(site, added=_added(site, config)) if "also_trains_on" in config else site


def _one_of(what: str, value: Any, known: Collection[str], *, listed: str = "known") -> str:
    if isinstance(value, str) and value in known:
        return value
    names = ", ".join(known) or "none"
    raise ValueError(f"unknown {what} {short_repr(value)}; {nearest(value, known)}{listed}: {names}")


def _name(value: str) -> str:
    """Return a valid site name; it appears in tables and in names of folders."""
    good = value.isprintable() and value.strip() == value and 0 < len(value) <= _MAX_NAME
    if not good or value.startswith(".") or set(value) & {"/", "\\"}:
        form = f"at most {_MAX_NAME} letters in one line without slashes, not beginning with a dot"
        raise ValueError(f"the site's name is {short_repr(value)}; give it by 'name', {form}")
    return value


def _existing(path: Path, config: Mapping[str, Any], key: str, kind: str, remedy: str) -> Path:
    """Return the path of a key, relative to the site.yaml; ValueError if it is not an existing ``kind``."""
    value = config[key]
    try:
        target = path.resolve().parent / Path(value).expanduser()
        exists = target.is_dir() if kind == "folder" else target.is_file()
    except (RuntimeError, OSError, ValueError) as error:
        raise ValueError(f"{key!r} is {short_repr(value)} ({error}); correct the path") from error
    if not value.isprintable():
        raise ValueError(f"{key!r} is {short_repr(value)}, which has unprintable characters; write a path in one line")
    if not exists:
        raise ValueError(f"{key!r} is {target}, which is not a {kind}; {remedy}")
    return target


def _added(site: Site, config: Mapping[str, Any]) -> Site:
    """Return the site whose training frames are added."""
    path, key = site.path, "also_trains_on"
    file = _existing(path, config, key, "file", _REMEDY)
    if file.resolve() == path.resolve():
        raise ValueError(f"{key!r} is this file itself; name another site.yaml, or leave the key out")
    if key in _read_mapping(file):  # checked before loading, because two files may name each other
        raise ValueError(f"{key!r} is {file}, which has {key!r}, too; name a site.yaml without it")
    other = load_site(file)
    if reason := unfit(site, other):
        raise ValueError(f"{key!r} is {file}, {reason}")
    return other


def _source(dataset: str, config: Mapping[Any, Any]) -> tuple[Source, tuple[str, ...]]:
    if dataset in KINDS:
        own, classes = describe(dataset, config)  # type: ignore[arg-type]  # dataset is a Kind
        return Source(dataset, own), classes
    if extra := next((key for key in OWN_KEYS if key in config), ""):
        raise ValueError(f"{extra!r} is for data of one's own, but {dataset} is a public data set; leave it out")
    source, value = Source(dataset), config.get("classes")
    known = source.reader.LABELS  # labels without pixels
    default = "" if source.classes else next(iter(known.values()), "")
    name = known.get(_DEFAULT_TARGETS.get(config.get("task", ""), ""), default) if value is None else value
    if isinstance(name, str) and name in known.values():
        return source, LABELS[name]
    return source, _pixel_classes(value, source)


def _pixel_classes(value: Any, source: Source) -> tuple[str, ...]:
    own = source.classes
    if value is not None and not own:
        raise ValueError(f"'classes' is {value!r}, but {source.dataset} has no label masks; leave it out")
    wanted = source.usual_classes if value is None else CLASS_MAPS[_one_of("class map", value, CLASS_MAPS)]
    if own and wanted not in readable_as(own):
        possible = " or ".join(map(name_of, readable_as(own)))
        has = f"{source.dataset} has {name_of(own)!r}, which is not finer"
        raise ValueError(f"'classes' is {value!r}, but {has}; write {possible}")
    return wanted


def _chosen(key: str, values: list[Any], choices: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_one_of(f"item in {key!r}", value, choices) for value in values)


def _split(value: Mapping[Any, Any], videos: list[str]) -> dict[str, tuple[VideoRange, ...]]:
    split = {}
    for name, items in value.items():
        _one_of("split", name, SPLITS)
        if isinstance(items, dict):
            items = [{video: bounds} for video, bounds in items.items()]
        if not isinstance(items, list):
            raise ValueError(f"split {name!r} is {items!r}; write a list of videos, such as [video_1]")
        split[name] = tuple(_video_range(name, item, videos) for item in items)
    parts = [(name, part) for name, ranges in split.items() for part in ranges]
    for (name, part), (other_name, other) in combinations(parts, 2):
        if part.overlaps(other):
            splits = f"splits {name!r} and {other_name!r}" if name != other_name else f"split {name!r} twice"
            raise ValueError(f"{part} and {other} share frames, in {splits}; give every frame to only one split")
    return split


def _video_range(split: str, item: Any, videos: list[str]) -> VideoRange:
    what, listed = f"video in split {split!r}", "'root' has"
    if not isinstance(item, dict):
        return VideoRange(_one_of(what, item, videos, listed=listed))
    if len(item) != 1:
        raise ValueError(f"split {split!r} has {item!r}; write one video with its range: OP1: [0, 30]")
    ((video, bounds),) = item.items()
    _one_of(what, video, videos, listed=listed)
    whole = isinstance(bounds, list) and len(bounds) == 2 and all(type(bound) is int for bound in bounds)
    if not whole or not 0 <= bounds[0] < bounds[1]:
        remedy = "write two whole numbers, the first frame and the frame after the last, such as [0, 30]"
        raise ValueError(f"split {split!r} gives {video} the range {bounds!r}; {remedy}")
    return VideoRange(video, bounds[0], bounds[1])
