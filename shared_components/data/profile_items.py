"""What a site may say of itself beyond weights, each item under a name that `publish` in site.yaml allows.

Rooms above know items by name only: a method names those it needs, the site measures what it publishes, server and
site's filter check the form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch

from shared_components.data.dataset import SampleDataset

LONGEST_TEXT = 1000  # characters


@dataclass(frozen=True)
class ProfileItem:
    """How an item is measured and checked.

    Attributes:
        words: What it is, for a refusal: "six numbers".
        measure: Called with the training samples and the site's text; returns plain values.
        well_formed: Says whether a value has the item's form.
    """

    words: str
    measure: Callable[[SampleDataset, str], Any]
    well_formed: Callable[[Any], bool]


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


def _is_style(value: Any) -> bool:
    rows = value if isinstance(value, list) and len(value) == 2 else []
    numbers = [number for row in rows if isinstance(row, list) and len(row) == 3 for number in row]
    return len(numbers) == 6 and all(_in_unit_range(number) for number in numbers)


def _in_unit_range(value: Any) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and 0 <= value <= 1


ITEMS: Mapping[str, ProfileItem] = {
    "style": ProfileItem("six numbers: means and deviations of the three colours", _style, _is_style),
    "text": ProfileItem(
        "the text of site.yaml",
        lambda dataset, text: text,
        lambda value: isinstance(value, str) and len(value) <= LONGEST_TEXT,
    ),
}


def check_item(name: str, value: Any) -> None:
    """Refuse an item that does not exist or has another form; None says that the site does not publish it.

    Raises:
        ValueError: One sentence.
    """
    if name not in ITEMS:
        raise ValueError(f"there is no profile item {name!r}; there are {', '.join(ITEMS)}")
    if value is not None and not ITEMS[name].well_formed(value):
        raise ValueError(f"profile item {name!r} should be {ITEMS[name].words}, and is {value!r:.80}")
