"""Published numbers of images, videos and clips in public data sets; `surgfl check-data` compares them."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shared_components.data.files import DataError
from shared_components.data.readers import find_reader

FL_ENDOVIT: Mapping[str, int] = {
    "heico": 350_539, "cholec80_frames": 178_129, "psi_ava": 73_618, "esad": 43_456, "lapgyn4": 38_192,
    "hsdb_instrument": 35_576, "dsad": 13_195, "glenda": 1_083, "surgical_actions160": 761,
}  # fmt: skip
"""Images of Endo700k's parts, from large to small (FL-EndoViT, Table 8); Cholec80 without videos 12, 17, 27 and 52."""
_TABLE_8 = "FL-EndoViT, Table 8"
_ENDOVIT = "EndoViT's list of Endo700k"
_PFEDSIS = "PFedSIS, section IV-A"
_SISVSE = "Yoon et al., 2022"
_SPLIT = "six frames of each clip, Wang et al., MICCAI 2022"


@dataclass(frozen=True)
class Published:
    """A published number."""

    counts: Mapping[int, str]  # source of the number, or of each number if publications differ or a release has parts
    split: str = ""  # official split; empty: the whole data set
    contains: Callable[[str, int], bool] = lambda video, number: True  # whether the split has a video's frame
    unit: str = "images"  # or "videos" or "clips", which are the reader's videos

    def __str__(self) -> str:
        return " or ".join(f"{count:,} ({source})" for count, source in self.counts.items())


def _videos(numbers: Collection[int]) -> Callable[[str, int], bool]:
    """Return a function that tests the number in a video's name."""
    return lambda video, number: any(int(digits) in numbers for digits in re.findall(r"\d+", video)[-1:])


def _named(*starts: str) -> Callable[[str, int], bool]:
    return lambda video, number: video.startswith(starts)


def _in_training_2017(video: str, number: int) -> bool:
    """Return whether EndoVis 2017's training release has a frame; the test release uses the same folders."""
    return number < 225 and _videos(range(1, 9))(video, number)


PUBLISHED: Mapping[str, tuple[Published, ...]] = {
    **{name: (Published({count: _TABLE_8}),) for name, count in FL_ENDOVIT.items()},
    "esad": (Published({FL_ENDOVIT["esad"]: _TABLE_8, 49_544: _ENDOVIT}),),
    "heico": (Published({FL_ENDOVIT["heico"]: _TABLE_8, 347_257: _ENDOVIT}),),
    "appendix300": (Published({330: "Kolbinger et al., 2025"}, unit="videos"),),
    "autolaparo": (
        Published({1_020: _SPLIT}, "train", _videos(range(1, 171))),
        Published({342: _SPLIT}, "validation", _videos(range(171, 228))),
        Published({438: _SPLIT}, "test", _videos(range(228, 301))),
    ),
    "cholec80": (Published({184_498: _ENDOVIT}),),
    "cholec80_frames": (
        Published({184_498: _ENDOVIT}),
        Published(
            {FL_ENDOVIT["cholec80_frames"]: _TABLE_8}, "before segmentation", _videos(set(range(81)) - {12, 17, 27, 52})
        ),
    ),
    "cholecseg8k": (
        Published({8_080: "Hong et al., 2020"}),
        Published({1_040: "FL-EndoViT, Figure 2"}, "FL-EndoViT's test", _videos({12, 27})),
    ),
    "cholect45": (Published({90_489: "README of CholecT45"}),),
    "cholect50": (),  # published as 100.9 thousand
    "endovis2015_rigid": (Published({160: "training release: four surgeries of 40 frames"}),),
    "endovis2017": (
        Published({1_800: _PFEDSIS}, "train", _in_training_2017),
        Published(
            {1_200: "Allan et al., 2019: eight parts of 75 frames and two of 300"}, "test",
            lambda video, number: not _in_training_2017(video, number),
        ),
    ),
    "endovis2018": (Published({2_235: f"training release, {_PFEDSIS}", 997: f"test release, {_PFEDSIS}"}),),
    "grasp": (Published({3_490: "FedST, section 4"}),),
    "gynsurg": (Published({7_518: "files of the release", 17_377: "Table 1 of GynSurg's README"}, unit="clips"),),
    "pfedsis_npy": (
        Published({1_800: "site 1", 2_235: "site 2", 4_710: f"site 3, {_PFEDSIS}"}, "train", _named("train/")),
        Published({600: "site 1", 997: "site 2", 1_138: f"site 3, {_PFEDSIS}"}, "test", _named("test/")),
    ),
    "sar_rarp50": (
        Published({13_043: "training videos", 3_252: "test videos", 16_295: "both; lists of a team of the challenge"}),
    ),
    "scared": (),
    "sisvse": (
        Published({3_400: _SISVSE}, "manual_syn", _named("manual_syn")),
        Published({1_246: _SISVSE}, "domain_random_syn", _named("domain_random_syn")),
        *(Published({4_510: _SISVSE}, f"real sets {k}", _named(f"real_train_{k}", f"real_val_{k}")) for k in (1, 2, 3)),
    ),
    "stereomis": (),
}  # fmt: skip
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
