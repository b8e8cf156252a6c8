"""Describe a hospital's data by a `site.yaml` on its own disk, read strictly.

    name: hospital-a                 # default: the name the federation gives the site
    dataset: endovis2017             # a reader's name
    root: /data/endovis2017          # absolute, or relative to this file
    classes: foreground              # default: the dataset's usual class map; another that it can be read as
    split:                           # by video, never by frame
      train: [instrument_dataset_1, instrument_dataset_2]
      validation: [instrument_dataset_3]
      test: [instrument_dataset_4]
    task: segmentation               # default: the first task of the bundle
    frame_interval: 1                # keep every n-th labelled frame
    history: true                    # may a clip show frames before its own? false: it repeats its own
    rate: 2.0                        # frame numbers per second; default: the dataset's own
    text: "da Vinci, porcine"        # description
    text_vectors: vectors.safetensors  # own vectors of texts; absolute, or relative to this file
    text_encoder: /models/clip       # folder of an own text encoder; likewise
    also_trains_on: sisvse/site.yaml # another site.yaml, whose training frames are added to this one's; likewise
    ids: {1: grasper, 2: suction}    # of frames and nifti, data of one's own: what the masks' values are
    images: images/{video}           # of these, too: where images, or video files, and masks lie below the root
    masks: masks/{video}             # also {group} above videos, and {class} in the names of binary masks
    first_frame: 0                   # the number that masks give the first frame of a video file, 0 or 1
    threshold: 0.5                   # masks with smoothed edges: least share of a pixel that makes it foreground
    mask_numbers: frames             # numbering of a video file's masks; or fps=1, or every=25
    partly_labelled: false           # may images lack masks? true: those that do are no samples
    axes: header                     # of NIfTI: as its header says, or as stored
    publish: [style]                 # what the site shares beyond weights; [] refuses
    withhold: [scores]               # what it keeps of what is for the record alone; default: nothing
    quarantine: 0.0                  # share of unreadable frames it may set aside, 0 to 0.2

A site with one surgery only may cut it by time: `train: [{OP1: [0, 30]}]` takes its first 30 labelled frames
(its first 30 images, where the task needs no labels).

A key or value that is not understood is an error, never a default.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, cast, overload

import yaml
from msgspec import Meta

from shared_components.common.atomic import atomically
from shared_components.common.schema import check_keys, check_values, nearest, short_repr
from shared_components.data.classes import CLASS_MAPS, LABELS, name_of, readable_as
from shared_components.data.custom.description import KEYS as OWN_KEYS
from shared_components.data.custom.description import KINDS, describe
from shared_components.data.custom.description import MEANINGS as OWN_MEANINGS
from shared_components.data.files import read_yaml_file
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
_TARGET_OF = {"triplets": "triplets", "phases": "phase"}  # by the kind of task; others have the dataset's usual one
_LONGEST_NAME = 100
_TEXT = Meta(description="write text, in quotes if it looks like a number")
KEYS: Mapping[str, Any] = {
    "dataset": Any,  # those of `Any` are checked by what reads them
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
MEANINGS: Mapping[str, tuple[str, str]] = {
    "dataset": ("required", "Data layout: the name of a public data set; `frames` or `nifti` for data of your own."),
    "root": ("required", "Folder of the data set, absolute or relative to this file."),
    "split": ("required", "Videos under `train`, `validation` and `test`; a range of one video is `{OP1: [0, 30]}`."),
    "name": ("the federation's", "Name of the site."),
    "classes": ("the data set's usual map", "Class map or a coarser map; for data of your own a list of names."),
    "task": ("the bundle's first", "Kind of task that the site learns."),
    "frame_interval": ("1", "Take every n-th labelled frame."),
    "history": ("true", "Let clips contain earlier frames; `false`: a clip repeats the labelled frame."),
    "rate": ("the data set's", "Frame numbers per second of video, for clips."),
    "text": ("none", "Description of the surgery for text encoders; sent only with `publish: [text]`."),
    "text_vectors": ("the project's", "File with the embedding of `text`."),
    "text_encoder": ("none", "Folder of a text encoder for `text`."),
    "publish": ("[style]", "Items that the site sends in addition to weights; `[]`: none."),
    "withhold": ("[]", "Values of the run log that stay at the site."),
    "quarantine": ("0.0", "Share of a split's frames that may be left out if they are unreadable."),
    "also_trains_on": ("none", "Path of another site.yaml; adds its training frames to this site's training frames."),
    **OWN_MEANINGS,
}
"""The default and the meaning of each key."""
PATHS = ("root", "text_vectors", "text_encoder", "also_trains_on")
"""The keys whose values may be relative to the file."""


def load_site(path: Path | str, *, name: str | None = None) -> Site:
    """Read and check a `site.yaml`; the data themselves are checked by `check_site`.

    Args:
        path: the file, or the folder that holds it.
        name: the federation's name of the site, used where the file gives none.

    Raises:
        SiteError: one sentence that begins with the file, names the key and says what to do.
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
    """Write a site.yaml; SiteError where it would not be one, and the old file stays."""
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    try:
        with atomically(out) as beside:
            beside.write_text(text, encoding="utf-8")
            load_site(beside)
    except SiteError as error:
        raise SiteError(str(error).replace(str(beside), str(out))) from error


def write_sites(out: Path, configs: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write ``out/<name>/site.yaml`` of each, by its name, and return the files; SiteError where one is there."""
    files = [out / config["name"] / "site.yaml" for config in configs]
    if old := [file for file in files if file.exists()]:
        raise SiteError(f"{old[0]}: is there already; give --out another folder")
    for file, config in zip(files, configs, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_site(file, config)
    return files


def _site(path: Path, config: Mapping[Any, Any], name: str | None) -> Site:
    check_keys(KEYS, config, required=("dataset", "root", "split"))
    dataset = _one_of("dataset", config["dataset"], source_names())
    check_values(KEYS, config, key="'{}'")
    root = _beside(path, config, "root", "folder", "mount it or correct the path")
    source, classes = _source(dataset, config)
    site = Site(
        name=_name(config.get("name") or name or path.resolve().parent.name),
        source=source,
        root=root,
        classes=classes,
        split=_split(config["split"], source.reader.videos(root)),
        task=config.get("task", ""),
        frame_interval=config.get("frame_interval", 1),
        history=config.get("history", True),
        rate=float(config["rate"]) if "rate" in config else source.reader.RATE,
        text=config.get("text", ""),
        publish=_chosen("publish", config.get("publish", ["style"]), PUBLISHABLE),
        quarantine=float(config.get("quarantine", 0.0)),
        path=path,
        text_vectors=_beside(path, config, "text_vectors", "file", f"make it with `surgfl text-vectors`, {_OR_LEAVE}"),
        text_encoder=_beside(path, config, "text_encoder", "folder", f"copy the encoder there, {_OR_LEAVE}"),
        withhold=_chosen("withhold", config.get("withhold", []), WITHHOLDABLE),
    )
    return replace(site, added=_added(site, config)) if "also_trains_on" in config else site


def without_site(folder: Path) -> list[str]:
    """Return the names of the folders in a folder of sites that hold no site.yaml; none where no folder does."""
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    missing = [path.name for path in found if not (path / "site.yaml").is_file()]
    return missing if len(missing) < len(found) else []


def _read_mapping(path: Path) -> dict[Any, Any]:
    try:
        config = read_yaml_file(path, error=SiteError)
    except FileNotFoundError:
        raise SiteError(f"{path}: no such file; write a site.yaml there") from None
    if not isinstance(config, dict):
        raise SiteError(f"{path}: must hold 'key: value' lines, such as 'dataset: endovis2017'")
    return config


_OR_LEAVE = "correct the path, or leave the key out"


def _one_of(what: str, value: Any, known: Collection[str], *, listed: str = "known") -> str:
    if isinstance(value, str) and value in known:
        return value
    raise ValueError(
        f"unknown {what} {short_repr(value)}; {nearest(value, known)}{listed}: {', '.join(known) or 'none'}"
    )


def _name(value: str) -> str:
    """Return the site's name where it can be one: it stands in tables, and in the names of folders."""
    good = value.isprintable() and value.strip() == value and 0 < len(value) <= _LONGEST_NAME
    if not good or value.startswith(".") or set(value) & {"/", "\\"}:
        raise ValueError(
            f"the site's name is {short_repr(value)}; give it by 'name', at most {_LONGEST_NAME} letters in "
            "one line without slashes, not beginning with a dot"
        )
    return value


@overload
def _beside(path: Path, config: Mapping[str, Any], key: Literal["root"], kind: str, remedy: str) -> Path: ...
@overload
def _beside(path: Path, config: Mapping[str, Any], key: str, kind: str, remedy: str) -> Path | None: ...
def _beside(path: Path, config: Mapping[str, Any], key: str, kind: str, remedy: str) -> Path | None:
    """Return the path that a key gives, which may be relative to the site.yaml; None without the key.

    Raises:
        ValueError: It is no ``kind``, or cannot be a path: of no user's home, with a line break, or too long.
    """
    if key not in config:
        return None
    value = config[key]
    try:
        found = path.resolve().parent / Path(value).expanduser()
        there = found.is_dir() if kind == "folder" else found.is_file()
    except (RuntimeError, OSError, ValueError) as error:
        raise ValueError(f"{key!r} is {short_repr(value)} ({error}); correct the path") from error
    if not value.isprintable():
        raise ValueError(f"{key!r} is {short_repr(value)}, which no path is; write it in one line")
    if not there:
        raise ValueError(f"{key!r} is {found}, which is not a {kind}; {remedy}")
    return found


def _added(site: Site, config: Mapping[str, Any]) -> Site:
    """Return the site whose training frames are added.

    Raises:
        ValueError: It is not there or wrong, adds frames itself, learns something else, knows coarser classes, has
            no training videos, or shares frames with this one.
    """
    path, key = site.path, "also_trains_on"
    file = cast(Path, _beside(path, config, key, "file", "correct the path, or leave the key out"))
    if file.resolve() == path.resolve():
        raise ValueError(f"{key!r} is this file itself; name another site.yaml, or leave the key out")
    if key in _read_mapping(file):  # before it is loaded, since two files may name each other
        raise ValueError(f"{key!r} is {file}, which says {key!r} itself; name a site.yaml without it")
    other = load_site(file)
    if reason := unfit(site, other):
        raise ValueError(f"{key!r} is {file}, {reason}")
    return other


def _source(dataset: str, config: Mapping[Any, Any]) -> tuple[Source, tuple[str, ...]]:
    """Return where the data come from, and the classes that the site has."""
    if dataset in KINDS:
        own, classes = describe(dataset, config)  # type: ignore[arg-type]  # it is one of the kinds
        return Source(dataset, own), classes
    for key in OWN_KEYS:
        if key in config:
            raise ValueError(
                f"{key!r} is for data of one's own ({' and '.join(KINDS)}), and {dataset} has a layout that "
                "is known; leave it out"
            )
    source = Source(dataset)
    task = config.get("task")
    return source, _labels(config.get("classes"), source, task) or _classes(config.get("classes"), source)


def _labels(value: Any, source: Source, task: Any) -> tuple[str, ...]:
    """Return the names of labels without pixels: those named, or else those of the task; nothing where it has none."""
    known = source.reader.LABELS
    usual = known.get(_TARGET_OF.get(task, ""), "" if source.classes else next(iter(known.values()), ""))
    name = usual if value is None else value
    return LABELS[name] if isinstance(name, str) and name in known.values() else ()


def _classes(value: Any, source: Source) -> tuple[str, ...]:
    own = source.classes
    if value is not None and not own:
        raise ValueError(f"'classes' is {value!r}, but {source.dataset} has no label masks; leave it out")
    wanted = source.usual_classes if value is None else CLASS_MAPS[_one_of("class map", value, CLASS_MAPS)]
    if own and wanted not in readable_as(own):
        raise ValueError(
            f"'classes' is {value!r}, but {source.dataset} has {name_of(own)!r}, which cannot be read so; "
            f"write {' or '.join(map(name_of, readable_as(own)))}"
        )
    return wanted


def _chosen(key: str, values: list[Any], choices: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_one_of(f"item in {key!r}", value, choices) for value in values)


def _split(value: Mapping[Any, Any], videos: list[str]) -> dict[str, tuple[VideoRange, ...]]:
    split = {
        _one_of("split", name, SPLITS): tuple(_video_range(name, item, videos) for item in _video_list(name, listed))
        for name, listed in value.items()
    }
    parts = [(name, part) for name, ranges in split.items() for part in ranges]
    for (name, part), (other_name, other) in combinations(parts, 2):
        if part.overlaps(other):
            where = f"splits {name!r} and {other_name!r}" if name != other_name else f"split {name!r} twice"
            raise ValueError(f"{part} and {other} share frames, in {where}; give every frame to one split only")
    return split


def _video_list(split: Any, value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [{video: bounds} for video, bounds in value.items()]
    if not isinstance(value, list):
        raise ValueError(f"split {split!r} is {value!r}; write a list of videos, such as [video_1]")
    return value


def _video_range(split: str, item: Any, videos: list[str]) -> VideoRange:
    what, holds = f"video in split {split!r}", "'root' holds"
    if not isinstance(item, dict):
        return VideoRange(_one_of(what, item, videos, listed=holds))
    if len(item) != 1:
        raise ValueError(f"split {split!r} holds {item!r}; write one video with its range: OP1: [0, 30]")
    ((video, bounds),) = item.items()
    _one_of(what, video, videos, listed=holds)
    whole = isinstance(bounds, list) and len(bounds) == 2 and all(type(bound) is int for bound in bounds)
    if not whole or not 0 <= bounds[0] < bounds[1]:
        raise ValueError(
            f"split {split!r} gives {video} the range {bounds!r}; write two whole numbers, the first "
            "frame and the one after the last, such as [0, 30]"
        )
    return VideoRange(video, bounds[0], bounds[1])
