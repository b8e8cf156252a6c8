"""A site with flipped labels: by hand, and against the site that it was made from."""

import numpy as np
import pytest

from evidence.attacks.labels import flip_site, flipped
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.data.synthetic.site import write_site


def test_ids_are_counted_from_the_other_end_and_unlabelled_pixels_stay():
    label = np.array([[0, 1], [3, 255]], dtype=np.uint8)
    assert flipped(label, 4).tolist() == [[3, 2], [0, 255]]


@pytest.mark.parametrize("layout", ["endovis2017", "sar_rarp50"])
@pytest.mark.parametrize("share, bad", [(0.0, 0), (0.5, 2), (1.0, 4)])
def test_only_the_training_labels_of_a_share_of_the_frames_are_flipped(tmp_path, layout, share, bad):
    videos = {"train": 2, "validation": 1, "test": 1}
    honest = write_site(
        tmp_path / "honest", look="rose", seed=1, layout=layout, videos=videos, frames_per_video=2, height=64,
        width=96,
    )  # fmt: skip
    hostile = flip_site(honest, tmp_path / "hostile", share=share)
    for split in videos:
        pairs = list(zip(samples(load_site(honest), split), samples(load_site(hostile), split), strict=True))
        for number, (before, after) in enumerate(pairs):
            was, now = read_sample(before), read_sample(after)
            flip = split == "train" and number < bad
            expected = 3 - was.targets["label"] if flip else was.targets["label"]
            assert np.array_equal(was.images, now.images)
            assert np.array_equal(now.targets["label"], expected), (split, number)


def test_other_classes_than_parts_are_refused(tmp_path):
    path = write_site(
        tmp_path / "a", look="rose", seed=1, layout="endovis2017", videos={"train": 1}, frames_per_video=2,
        height=64, width=96,
    )  # fmt: skip
    path.write_text(path.read_text() + "\nclasses: foreground\n")
    with pytest.raises(ValueError, match=r"its classes are \('background', 'instrument'\)"):
        flip_site(path, tmp_path / "b")
