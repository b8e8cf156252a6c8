"""Describe a hospital's data by a `site.yaml` on its own disk, read strictly.

    name: hospital-a                 # default: the name the federation gives the site
    dataset: endovis2017             # a reader's name
    root: /data/endovis2017          # absolute, or relative to this file
    classes: foreground              # default: the dataset's own class map, or a coarser one
    split:                           # by video, never by frame
      train: [instrument_dataset_1, instrument_dataset_2]
      validation: [instrument_dataset_3]
      test: [instrument_dataset_4]
    task: segmentation               # default: the first task of the bundle
    frame_interval: 1                # take every n-th labelled frame
    history: true                    # may a clip show frames before its own? false: it repeats its own
    rate: 2.0                        # frame numbers per second; default: the dataset's own
    text: "da Vinci, porcine"        # description
    text_vectors: vectors.safetensors  # own vectors of texts; absolute, or relative to this file
    text_encoder: /models/clip       # folder of an own text encoder; likewise
    also_trains_on: sisvse/site.yaml # another site.yaml, whose training frames are added to this one's; likewise
    ids: {1: grasper, 2: suction}    # of frames and nifti, data of one's own: what the masks' values are
    images: images/{video}           # of these, too: where images, or video files, and masks lie below the root
    masks: masks/{video}
    first_frame: 0                   # the number that masks give the first frame of a video file, 0 or 1
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

import difflib
import math
from collections.abc import Collection
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from shared_components.common.plain_yaml import YamlError, read_yaml
from shared_components.data.added_site import unfit
from shared_components.data.classes import CLASS_MAPS, name_of, readable_as
from shared_components.data.consent import PUBLISHABLE, WITHHOLDABLE
from shared_components.data.custom.description import KEYS as OWN_KEYS
from shared_components.data.custom.description import KINDS, describe
from shared_components.data.files import DataError, read_text
from shared_components.data.site import SPLITS, Site, SiteError, VideoRange
from shared_components.data.source import Source, source_names

MAX_QUARANTINE = 0.2
MOST_BYTES = 1 << 20
"""Of a site.yaml; one that lists ten thousand videos has a quarter of it."""
_LONGEST_NAME = 100
_SHOWN = 200  # letters of a value that an error repeats
_REQUIRED = ("dataset", "root", "split")
_OPTIONAL = (
    "name",
    "classes",
    "task",
    "frame_interval",
    "history",
    "rate",
    "text",
    "text_vectors",
    "text_encoder",
    "publish",
    "withhold",
    "quarantine",
    "also_trains_on",
    *OWN_KEYS,
)
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
    for key in config:
        _one_of(path, "key", key, [*_REQUIRED, *_OPTIONAL], listed="known keys")
    for key in _REQUIRED:
        if key not in config:
            raise SiteError(f"{path}: has no '{key}'; add it (required are {', '.join(_REQUIRED)})")
    dataset = _one_of(path, "dataset", config["dataset"], source_names())
    root = _root(path, config["root"])
    source, classes = _source(path, dataset, config)
    site = Site(
        name=_name(path, _text(path, config, "name") or name or path.resolve().parent.name),
        source=source,
        root=root,
        classes=classes,
        split=_split(path, config["split"], source, root),
        task=_text(path, config, "task"),
        frame_interval=_frame_interval(path, config.get("frame_interval", 1)),
        history=_history(path, config.get("history", True)),
        rate=_rate(path, config["rate"]) if "rate" in config else source.reader.RATE,
        text=_text(path, config, "text"),
        publish=_chosen(path, "publish", config.get("publish", ["style"]), PUBLISHABLE),
        quarantine=_quarantine(path, config.get("quarantine", 0.0)),
        path=path,
        text_vectors=_text_vectors(path, config),
        text_encoder=_text_encoder(path, config),
        withhold=_chosen(path, "withhold", config.get("withhold", []), WITHHOLDABLE),
    )
    return replace(site, added=_added(site, config["also_trains_on"])) if "also_trains_on" in config else site


def _read_mapping(path: Path) -> dict[Any, Any]:
    try:
        config = read_yaml(read_text(path, MOST_BYTES))
    except FileNotFoundError:
        raise SiteError(f"{path}: no such file; write a site.yaml there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SiteError(f"{path}: cannot be read ({error}); check the file") from error
    except DataError as error:
        raise SiteError(str(error)) from error
    except YamlError as error:
        raise SiteError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise SiteError(f"{path}: must hold 'key: value' lines, such as 'dataset: endovis2017'")
    return config


def _one_of(path: Path, what: str, value: Any, known: Collection[str], *, listed: str = "known") -> str:
    if isinstance(value, str) and value in known:
        return value
    close = difflib.get_close_matches(str(value), known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise SiteError(f"{path}: unknown {what} {value!r}; {hint}{listed}: {', '.join(known) or 'none'}")


def _text(path: Path, config: dict[Any, Any], key: str) -> str:
    value = config.get(key, "")
    if not isinstance(value, str):
        raise SiteError(f"{path}: '{key}' is {value!r}; write text, in quotes if it looks like a number")
    return value


def _name(path: Path, value: str) -> str:
    """Return the site's name where it can be one: it stands in tables, and in the names of folders."""
    good = value.isprintable() and value.strip() == value and 0 < len(value) <= _LONGEST_NAME
    if not good or value.startswith(".") or set(value) & {"/", "\\"}:
        raise SiteError(
            f"{path}: the site's name is {value!r:.{_SHOWN}}; give it by 'name', at most {_LONGEST_NAME} letters in "
            "one line without slashes, not beginning with a dot"
        )
    return value


def _root(path: Path, value: Any) -> Path:
    if not isinstance(value, str) or not value:
        raise SiteError(f"{path}: 'root' is {value!r}; write the folder of the dataset")
    root = _beside(path, value, "root")
    if not root.is_dir():
        raise SiteError(f"{path}: 'root' is {root}, which is not a folder; mount it or correct the path")
    return root


def _beside(path: Path, value: str, key: str) -> Path:
    """Return a path that a site.yaml says, which may be relative to it.

    Raises:
        SiteError: it cannot be one: of no user's home, with a line break, or too long.
    """
    try:
        found = path.resolve().parent / Path(value).expanduser()
        found.exists()
    except (RuntimeError, OSError, ValueError) as error:
        raise SiteError(f"{path}: {key!r} is {value!r:.{_SHOWN}} ({error}); correct the path") from error
    if not value.isprintable():
        raise SiteError(f"{path}: {key!r} is {value!r:.{_SHOWN}}, which no path is; write it in one line")
    return found


def _text_vectors(path: Path, config: dict[Any, Any]) -> Path | None:
    if "text_vectors" not in config:
        return None
    value, example = config["text_vectors"], "my-vectors.safetensors"
    if not isinstance(value, str) or not value.endswith(".safetensors"):
        raise SiteError(f"{path}: 'text_vectors' is {value!r}; write a file of text vectors, such as {example}")
    if not (file := _beside(path, value, "text_vectors")).is_file():
        raise SiteError(
            f"{path}: 'text_vectors' is {file}, which is not a file; make it with `surgfl text-vectors`, correct the "
            "path, or leave the key out"
        )
    return file


def _text_encoder(path: Path, config: dict[Any, Any]) -> Path | None:
    if "text_encoder" not in config:
        return None
    value = config["text_encoder"]
    if not isinstance(value, str) or not value:
        raise SiteError(f"{path}: 'text_encoder' is {value!r}; write the folder of a text encoder")
    if not (folder := _beside(path, value, "text_encoder")).is_dir():
        raise SiteError(
            f"{path}: 'text_encoder' is {folder}, which is not a folder; copy the encoder there, correct the path, or "
            "leave the key out"
        )
    return folder


def _added(site: Site, value: Any) -> Site:
    """Return the site whose training frames are added.

    Raises:
        SiteError: It is not there or wrong, adds frames itself, learns something else, knows coarser classes, has
            no training videos, or shares frames with this one.
    """
    path, key = site.path, "also_trains_on"
    if not isinstance(value, str) or not value:
        raise SiteError(f"{path}: {key!r} is {value!r}; write the path of another site.yaml")
    file = _beside(path, value, key)
    if file.resolve() == path.resolve():
        raise SiteError(f"{path}: {key!r} is this file itself; name another site.yaml, or leave the key out")
    if not file.is_file():
        raise SiteError(f"{path}: {key!r} is {file}, which is not a file; correct the path, or leave the key out")
    if key in _read_mapping(file):  # looked at before it is loaded, since two files may name each other
        raise SiteError(f"{path}: {key!r} is {file}, which says {key!r} itself; name a site.yaml without it")
    other = load_site(file)
    if reason := unfit(site, other):
        raise SiteError(f"{path}: {key!r} is {file}, {reason}")
    return other


def _source(path: Path, dataset: str, config: dict[Any, Any]) -> tuple[Source, tuple[str, ...]]:
    """Return where the data come from, and the classes that the site has."""
    if dataset in KINDS:
        try:
            own, classes = describe(dataset, config)  # type: ignore[arg-type]  # it is one of the kinds
        except ValueError as error:
            raise SiteError(f"{path}: {error}") from error
        return Source(dataset, own), classes
    for key in OWN_KEYS:
        if key in config:
            raise SiteError(
                f"{path}: {key!r} is for data of one's own ({' and '.join(KINDS)}), and {dataset} has a layout that "
                "is known; leave it out"
            )
    source = Source(dataset)
    return source, _classes(path, config.get("classes"), source)


def _classes(path: Path, value: Any, source: Source) -> tuple[str, ...]:
    own = source.classes
    if value is not None and not own:
        raise SiteError(f"{path}: 'classes' is {value!r}, but {source.dataset} has no label masks; leave it out")
    wanted = own if value is None else CLASS_MAPS[_one_of(path, "class map", value, CLASS_MAPS)]
    if own and wanted not in readable_as(own):
        raise SiteError(
            f"{path}: 'classes' is {value!r}, but {source.dataset} has {name_of(own)!r}, which cannot be read so; "
            f"write {' or '.join(map(name_of, readable_as(own)))}"
        )
    return wanted


def _frame_interval(path: Path, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SiteError(f"{path}: 'frame_interval' is {value!r}; write a whole number of 1 or more")
    return value


def _history(path: Path, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SiteError(f"{path}: 'history' is {value!r}; write true or false")
    return value


def _rate(path: Path, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise SiteError(f"{path}: 'rate' is {value!r}; write the frame numbers per second, such as 25")
    return float(value)


def _chosen(path: Path, key: str, value: Any, choices: tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise SiteError(f"{path}: {key!r} is {value!r}; write a list: [{choices[0]}], or [] for nothing")
    return tuple(_one_of(path, f"item in {key!r}", item, choices) for item in value)


def _quarantine(path: Path, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_QUARANTINE:
        raise SiteError(f"{path}: 'quarantine' is {value!r}; write a share of the frames from 0 to {MAX_QUARANTINE}")
    return float(value)


def _split(path: Path, value: Any, source: Source, root: Path) -> dict[str, tuple[VideoRange, ...]]:
    if not isinstance(value, dict):
        raise SiteError(f"{path}: 'split' is {value!r}; write lists of videos under {', '.join(SPLITS)}")
    videos = _videos(path, source, root)
    split = {
        _one_of(path, "split", name, SPLITS): tuple(
            _video_range(path, name, item, videos) for item in _video_list(path, name, listed)
        )
        for name, listed in value.items()
    }
    _refuse_overlaps(path, split)
    return split


def _videos(path: Path, source: Source, root: Path) -> list[str]:
    try:
        return source.reader.videos(root)
    except DataError as error:
        raise SiteError(f"{path}: {error}") from error


def _video_list(path: Path, split: Any, value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [{video: bounds} for video, bounds in value.items()]
    if not isinstance(value, list):
        raise SiteError(f"{path}: split {split!r} is {value!r}; write a list of videos, such as [video_1]")
    return value


def _video_range(path: Path, split: str, item: Any, videos: list[str]) -> VideoRange:
    if not isinstance(item, dict):
        return VideoRange(_known_video(path, split, item, videos))
    if len(item) != 1:
        raise SiteError(f"{path}: split {split!r} holds {item!r}; write one video with its range: OP1: [0, 30]")
    ((video, bounds),) = item.items()
    _known_video(path, split, video, videos)
    whole = isinstance(bounds, list) and len(bounds) == 2 and all(type(bound) is int for bound in bounds)
    if not whole or not 0 <= bounds[0] < bounds[1]:
        raise SiteError(
            f"{path}: split {split!r} gives {video} the range {bounds!r}; write two whole numbers, the first "
            "frame and the one after the last, such as [0, 30]"
        )
    return VideoRange(video, bounds[0], bounds[1])


def _known_video(path: Path, split: str, video: Any, videos: list[str]) -> str:
    return _one_of(path, f"video in split {split!r}", video, videos, listed="'root' holds")


def _refuse_overlaps(path: Path, split: dict[str, tuple[VideoRange, ...]]) -> None:
    parts = [(name, part) for name, ranges in split.items() for part in ranges]
    for (name, part), (other_name, other) in combinations(parts, 2):
        if part.overlaps(other):
            where = f"splits {name!r} and {other_name!r}" if name != other_name else f"split {name!r} twice"
            raise SiteError(f"{path}: {part} and {other} share frames, in {where}; give every frame to one split only")
