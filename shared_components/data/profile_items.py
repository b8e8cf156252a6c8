"""Profile items: facts that a site may publish in addition to weights, named in `publish` of site.yaml.

A method names the items it needs, the site measures them, and the server and the site's filter check their form.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import cv2
import numpy as np
import torch
from msgspec import Meta

from shared_components.common.schema import Schema, fits, short_repr
from shared_components.data.dataset import SampleDataset

LONGEST_TEXT = 1000  # characters
LONGEST_NAME = 100  # characters of an encoder's name; a kind and a SHA-256 are shorter
LONGEST_VECTOR, LARGEST_NUMBER = 4096, 1000.0  # CLIP has vectors of 512 or 768 numbers of about 10
TEXT_VECTOR = "text_vector"

EncoderName = Annotated[
    str, Meta(pattern=rf"^[ -~]{{0,{LONGEST_NAME}}}\Z", description="it is the name of an encoder, or empty")
]


class TextVector(Schema, frozen=True):
    """Embedding of a site's text, and its encoder: vectors of two encoders cannot be compared."""

    encoder: EncoderName
    values: Annotated[
        list[Annotated[float, Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]],
        Meta(min_length=1, max_length=LONGEST_VECTOR),
    ]


@dataclass(frozen=True)
class ProfileItem:
    words: str  # form for error messages, such as "six numbers"
    measure: Callable[[SampleDataset, str], Any]  # function of the training samples and the site's text
    kind: Any  # declared type
    for_sites: bool = True  # whether the server sends the item to all sites


def style_statistics(dataset: SampleDataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Measure a site's style: the mean over its frames of each channel's mean and standard deviation.

    Frames are resized, whole and unaugmented, and the deviation is the population's (PFedSIS, step 1 of its overview;
    the released code uses augmented, zero-padded batches). Only the last frame of a clip counts, and no added frames.
    Return mean and deviation, float32 (3,), in units of [0, 1]; SiteError for an empty dataset.
    """
    dataset.refuse_empty()
    own = [index for index, sample in enumerate(dataset.samples) if not sample.added]
    statistics = [cv2.meanStdDev(dataset.arrays(index)[0][-1]) for index in own]
    # (N, 2, 3, 1) float64 -> (2, 3)
    mean, std = torch.from_numpy(np.array(statistics)).squeeze(-1).mean(dim=0) / 255
    return mean.float(), std.float()


def _refuse_measuring(dataset: SampleDataset, text: str) -> Any:
    raise ValueError("this profile item is computed by the method that reads it, see `method.Local.items`")


_Colours = Annotated[list[Annotated[float, Meta(ge=0, le=1)]], Meta(min_length=3, max_length=3)]

ITEMS: Mapping[str, ProfileItem] = {
    "style": ProfileItem(
        "six numbers: means and deviations of the three colours",
        lambda dataset, text: [value.tolist() for value in style_statistics(dataset)],
        Annotated[list[_Colours], Meta(min_length=2, max_length=2)],
    ),
    "text": ProfileItem(
        "the text of site.yaml", lambda dataset, text: text, Annotated[str, Meta(max_length=LONGEST_TEXT)]
    ),
    TEXT_VECTOR: ProfileItem(
        f"the text of site.yaml as at most {LONGEST_VECTOR} numbers, from -{LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}, "
        "with the name of their encoder",
        _refuse_measuring,
        TextVector,
        for_sites=False,
    ),
}


def check_item(name: str, value: Any) -> None:
    """Raise a ValueError for an unknown item or another form; None means that the site does not publish it."""
    if name not in ITEMS:
        raise ValueError(f"unknown profile item {short_repr(name)}; known: {', '.join(ITEMS)}")
    if value is not None and not fits(value, ITEMS[name].kind):
        raise ValueError(f"profile item {name!r} should be {ITEMS[name].words}, and is {short_repr(value)}")
