"""Label flipping: a copy of a site whose masks swap class c with class C - 1 - c.

Biggio et al., ICML 2012 (arXiv 1206.6389) flip labels of two classes. Fang et al., USENIX Security 2020
(arXiv 1911.11815) extend it to C classes. The site trains honestly on the flipped data.
"""

from pathlib import Path

import numpy as np
import yaml

from shared_components.data.files.classes import CLASS_MAPS, IGNORED
from shared_components.data.samples import Sample, read_sample, samples
from shared_components.data.site import SPLITS
from shared_components.data.site_file import load_site

PARTS = CLASS_MAPS["parts"]


def flipped(label: np.ndarray, classes: int) -> np.ndarray:
    """Return a mask with ids c below ``classes`` replaced by classes - 1 - c; unlabelled pixels stay unlabelled."""
    return np.where(label == IGNORED, label, classes - 1 - label).astype(np.uint8)


def flip_site(path: Path, out: Path, *, share: float = 1.0) -> Path:
    """Copy a site with flipped training labels, in the layout of `readers.pfedsis_npy`.

    Args:
        path: The honest site.yaml; its classes are instrument parts.
        out: Folder of the new site.
        share: Share of the training frames to flip, from the first frame; 0 copies all unchanged.

    Returns:
        The new site.yaml; it lists equally many samples and videos, in the same order.
    """
    site = load_site(path)
    if site.classes != PARTS:
        raise ValueError(f"{path}: its classes are {site.classes}; labels of {PARTS} can be flipped")
    split: dict[str, list[str]] = {}
    for part in SPLITS:
        chosen = samples(site, part)
        videos = list(dict.fromkeys(sample.video for sample in chosen))
        bad = round(share * len(chosen)) if part == "train" else 0
        for number, sample in enumerate(chosen):
            name = f"video{10 * (1 + SPLITS.index(part)) + videos.index(sample.video)}"
            _write(out, name, sample, flip=number < bad)
            split.setdefault(part, [])
            if f"train/{name}" not in split[part]:
                split[part].append(f"train/{name}")
    told = yaml.safe_load(path.read_text(encoding="utf-8"))
    told |= {"dataset": "pfedsis_npy", "root": ".", "split": split}
    (out / "site.yaml").write_text(yaml.safe_dump(told))
    return out / "site.yaml"


def _write(out: Path, name: str, sample: Sample, *, flip: bool) -> None:
    item = read_sample(sample)
    label = flipped(item.targets["label"], len(PARTS)) if flip else item.targets["label"]
    for folder, value in (("image", item.images[-1]), ("mask", label)):
        path = out / "train" / folder / f"{name}frame{sample.index:09d}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, value)
