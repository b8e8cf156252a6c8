"""Keys of a `site.yaml` for a hospital's own data, and their checks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from shared_components.common.schema import short_repr
from shared_components.data.custom.ids import Ids, class_ids, own_classes, parse_ids, parse_words, places
from shared_components.data.files.images import VIDEOS, VOLUMES, Axes

Kind = Literal["frames", "nifti"]
KINDS: tuple[Kind, ...] = ("frames", "nifti")
VIDEO, GROUP, CLASS = "{video}", "{group}", "{class}"
NUMBERS = r"\A(frames|(fps|every)=\d+(\.\d+)?)\Z"
"""Pattern of `mask_numbers`: all frames of a video, or extracted frames."""
IMAGES = f"images/{VIDEO}"
MASKS: dict[Kind, str] = {"frames": f"masks/{VIDEO}", "nifti": f"masks/{VIDEO}.nii.gz"}
"""Default template of masks."""


@dataclass(frozen=True)
class Own:
    """Locations of images and masks, and the meaning of the masks' values; site_keys.yaml explains the other fields.

    Attributes:
        kind: Masks as image files, or one label volume per video.
        classes: Classes of the masks, background first.
        images, masks: Path templates below the root; {video} is replaced by a video's name, * by a frame's name.
        words: Words that replace {class} in the template of binary masks, and their class ids.
    """

    kind: Kind
    ids: Ids
    classes: tuple[str, ...]
    images: str = IMAGES
    masks: str = MASKS["frames"]
    first_frame: int = 0
    partly_labelled: bool = False
    axes: Axes = "header"
    words: tuple[tuple[str, int], ...] = ()
    threshold: float | None = None
    mask_numbers: str = "frames"


KEYS: Mapping[str, Any] = {
    "ids": Any,
    "images": Any,
    "masks": Any,
    "first_frame": Annotated[Literal[0, 1], Meta(description="write 0 or 1")],
    "partly_labelled": bool,
    "threshold": Annotated[float, Meta(gt=0, lt=1, description="write a share of a pixel, such as 0.5")],
    "mask_numbers": Annotated[str, Meta(pattern=NUMBERS, description="write frames, fps=1 or every=25")],
    "axes": Annotated[Axes, Meta(description=f"write {' or '.join(get_args(Axes))}")],
}
"""Types of the additional keys of a site.yaml for own data."""


def describe(kind: Kind, config: Mapping[str, Any]) -> tuple[Own, tuple[str, ...]]:
    """Return the description in a site.yaml whose values fit `KEYS`, and the site's classes.

    A ValueError is a sentence that begins with the key.
    """
    if "ids" not in config:
        raise ValueError(f"has no 'ids', which {kind!r} needs; write what the masks' values are: {{1: grasper}}")
    images, masks = config.get("images", IMAGES), config.get("masks", MASKS[kind])
    _refuse_templates(images, masks)
    words = parse_words(config["ids"]) if CLASS in masks else {}
    table = {} if words else parse_ids(config["ids"])
    own, classes = own_classes((words or table).values(), config.get("classes"))
    ids = class_ids(table, own)
    if kind == "nifti":
        if not masks.endswith(VOLUMES) or "*" in masks or CLASS in masks:
            raise ValueError(f"'masks' is {masks!r}; write one volume per video, such as {MASKS['nifti']!r}")
        if ids.coloured:
            raise ValueError("'ids' names colours, and NIfTI volumes contain numbers; name the numbers")
    for key, of, data in (("axes", "nifti", "'nifti'"), ("threshold", "frames", "masks in image files")):
        if key in config and kind != of:
            raise ValueError(f"{key!r} is for {data}, and this dataset is {kind!r}; leave it out")
    optional = ("first_frame", "partly_labelled", "axes", "threshold", "mask_numbers")
    rest = {key: config[key] for key in optional if key in config}
    word_ids = tuple((word, places(own)[name]) for word, name in words.items())
    return Own(kind, ids, own, images, masks, words=word_ids, **rest), classes


def _refuse_templates(images: str, masks: str) -> None:
    refuse_template("images", images)
    refuse_template("masks", masks)
    for place in (VIDEO, GROUP):
        if (place in images) != (place in masks):
            raise ValueError(f"'images' is {images!r} and 'masks' is {masks!r}; write {place} in both, or in neither")
    refuse_class_masks_of_videos(images, masks)


def refuse_class_masks_of_videos(images: str, masks: str) -> None:
    """Raise ValueError for binary masks of video files; the sentence begins with the key."""
    if CLASS in masks and images.lower().endswith((*VIDEOS, *VOLUMES)):
        what = f"'masks' is {masks!r}, and 'images' names video files"
        raise ValueError(f"{what}; extract the labelled frames as images, and give them the names of the masks")


def refuse_template(key: str, value: object) -> None:
    """Raise ValueError for a path template that names no path below the root; the sentence begins with the key."""
    parts = value.split("/") if isinstance(value, str) else []
    prefix = f"'{key}' is {short_repr(value)}; "
    if not parts or {"", ".", ".."} & set(parts) or not str(value).isprintable() or "\\" in str(value):
        raise ValueError(f"{prefix}write a path below 'root', such as {IMAGES!r}")
    known = (VIDEO, GROUP, CLASS) if key == "masks" else (VIDEO, GROUP)
    rest = [re.sub("|".join(map(re.escape, known)), "", part) for part in parts]
    if any("{" in part or "}" in part for part in rest):
        raise ValueError(f"{prefix}the possible words in braces are {', '.join(known)}")
    anywhere = CLASS in str(value)
    if sum(part.count("*") for part in rest) > 1 or (any("*" in part for part in rest[:-1]) and not anywhere):
        raise ValueError(f"{prefix}write at most one *, in the last part, for the frame's name")
    if GROUP in str(value) and VIDEO not in str(value):
        raise ValueError(f"{prefix}{GROUP} is a folder of videos: write {VIDEO}, too")
