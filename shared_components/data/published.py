"""Published numbers of images, videos and clips in public data sets; `surgfl check-data` compares them."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shared_components.common.plain_yaml import beside, read_own_yaml
from shared_components.data.files.images import DataError
from shared_components.data.readers import find_reader

FL_ENDOVIT: Mapping[str, int] = {
    "heico": 350_539, "cholec80_frames": 178_129, "psi_ava": 73_618, "esad": 43_456, "lapgyn4": 38_192,
    "hsdb_instrument": 35_576, "dsad": 13_195, "glenda": 1_083, "surgical_actions160": 761,
}  # fmt: skip
"""Images of Endo700k's parts, from large to small (FL-EndoViT, Table 8); Cholec80 without videos 12, 17, 27 and 52."""


@dataclass(frozen=True)
class Published:
    counts: Mapping[int, str]  # source of the number, or of each number if publications differ or a release has parts
    split: str = ""  # official split; empty: the whole data set
    unit: str = "images"  # or "videos" or "clips", which are the reader's videos
    videos: tuple[tuple[int, int], ...] = ()  # ranges of the last number in the names of the split's videos; empty: all
    starts: tuple[str, ...] = ("",)  # beginnings of the names of the split's videos
    below: float = math.inf  # the split has only frames with smaller numbers
    others: bool = False  # whether the split has the frames that do not fit

    def __str__(self) -> str:
        return " or ".join(f"{count:,} ({source})" for count, source in self.counts.items())

    def contains(self, video: str, number: int) -> bool:
        last = [int(digits) for digits in re.findall(r"\d+", video)[-1:]]
        named = not self.videos or any(first <= n <= end for n in last for first, end in self.videos)
        return (named and video.startswith(self.starts) and number < self.below) != self.others


PUBLISHED = msgspec.convert(read_own_yaml(beside(__file__, "published.yaml")), dict[str, tuple[Published, ...]])
"""Published numbers by data set; empty if no exact number is known."""


def compare_with_published(dataset: str, root: Path) -> Iterator[str]:
    """Yield lines that compare the published numbers of a data set with the numbers under a root.

    Splits without images are left out. A video that cannot be listed gets a line; a wrong root raises a DataError.
    """
    if not (numbers := PUBLISHED.get(dataset)):
        return
    reader, listed, errors = find_reader(dataset), [], []
    for video in reader.videos(root):
        try:
            frames = reader.frames(root, video) if any(entry.unit == "images" for entry in numbers) else [(0,)]
            listed += [(video, frame[0]) for frame in frames]
        except DataError as error:
            errors.append(f"warning: {video} is not counted: {error}")
    for entry in numbers:
        if count := sum(entry.contains(video, number) for video, number in listed):
            part = f"{dataset}, {entry.split}" if entry.split else dataset
            line = f"{part}: found {count:,} {entry.unit if count > 1 else entry.unit[:-1]}"
            source = entry.counts.get(count)
            yield f"{line}, as published ({source})" if source else f"warning: {line}, but published are {entry}"
    yield from errors
