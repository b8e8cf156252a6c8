"""Facts that a site may publish beyond weights, each under a name that `publish` in site.yaml allows.

A method names the items it needs, the site measures the ones it publishes, and the server and the site's filter check
their form.
"""

from __future__ import annotations

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
LONGEST_NAME = 100  # characters of an encoder's; its kind and a SHA-256 are fewer
LONGEST_VECTOR, LARGEST_NUMBER = 4096, 1000.0  # of a text's vector; CLIP's have 512 or 768 numbers, of some 10
TEXT_VECTOR = "text_vector"

EncoderName = Annotated[
    str, Meta(pattern=rf"^[ -~]{{0,{LONGEST_NAME}}}\Z", description="it is the name of an encoder, or empty")
]


class TextVector(Schema, frozen=True):
    """A site's text as numbers, and the encoder that computed them: vectors of two encoders do not compare."""

    encoder: EncoderName
    values: Annotated[
        list[Annotated[float, Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]],
        Meta(min_length=1, max_length=LONGEST_VECTOR),
    ]


@dataclass(frozen=True)
class ProfileItem:
    """An item, its measurement and its type.

    Attributes:
        words: For a refusal: "six numbers".
        measure: Called with the training samples and the site's text; returns plain values.
        kind: Its declared type.
        for_sites: The server passes it on to all sites.
    """

    words: str
    measure: Callable[[SampleDataset, str], Any]
    kind: Any
    for_sites: bool = True


def style_statistics(dataset: SampleDataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Measure a site's style: the mean over its samples of each channel's mean and standard deviation.

    Taken over whole resized frames without augmentation, with the population's standard deviation (PFedSIS,
    step 1 of its overview; the released code measures augmented, zero-padded batches). Of a clip the labelled frame
    counts; frames of another site, on which this one trains as well, do not.

    Returns:
        mean float32 (3,) and standard deviation float32 (3,), in units of [0, 1].

    Raises:
        SiteError: the dataset is empty.
    """
    dataset.refuse_empty()
    own = [index for index, sample in enumerate(dataset.samples) if not sample.added]
    statistics = [cv2.meanStdDev(dataset.arrays(index)[0][-1]) for index in own]
    # (N, 2, 3, 1) float64 -> (2, 3)
    mean, std = torch.from_numpy(np.array(statistics)).squeeze(-1).mean(dim=0) / 255
    return mean.float(), std.float()


def _style(dataset: SampleDataset, text: str) -> list[list[float]]:
    mean, deviation = style_statistics(dataset)
    return [mean.tolist(), deviation.tolist()]


def _by_the_method(dataset: SampleDataset, text: str) -> Any:
    raise ValueError("this profile item is computed by the method that reads it, see `method.Local.items`")


_Colours = Annotated[list[Annotated[float, Meta(ge=0, le=1)]], Meta(min_length=3, max_length=3)]

ITEMS: Mapping[str, ProfileItem] = {
    "style": ProfileItem(
        "six numbers: means and deviations of the three colours",
        _style,
        Annotated[list[_Colours], Meta(min_length=2, max_length=2)],
    ),
    "text": ProfileItem(
        "the text of site.yaml", lambda dataset, text: text, Annotated[str, Meta(max_length=LONGEST_TEXT)]
    ),
    TEXT_VECTOR: ProfileItem(
        f"the text of site.yaml as at most {LONGEST_VECTOR} numbers, from -{LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}, "
        "with the name of their encoder",
        _by_the_method,
        TextVector,
        for_sites=False,
    ),
}


def check_item(name: str, value: Any) -> None:
    """Refuse an item that does not exist or has another form; None says that the site does not publish it.

    Raises:
        ValueError: One sentence.
    """
    if name not in ITEMS:
        raise ValueError(f"there is no profile item {short_repr(name)}; there are {', '.join(ITEMS)}")
    if value is not None and not fits(value, ITEMS[name].kind):
        raise ValueError(f"profile item {name!r} should be {ITEMS[name].words}, and is {short_repr(value)}")
