"""Samples that are whole videos: equally spaced or drawn frames and one target, or every frame in order."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shared_components.data.check import readable_samples
from shared_components.data.collate import collate
from shared_components.data.dataset import SampleDataset, batches, random_places
from shared_components.data.samples import SampleSpec, equally_spaced, read_sample, samples
from shared_components.data.site import SiteError
from tests.data.conftest import numbers
from tests.data.label_layouts import site_of

GRADE = SampleSpec(("grade",), frames=3, targets_of="video")


def test_frames_are_equally_spaced_or_distinct_draws_in_order():
    assert equally_spaced(9, 3) == [0, 4, 8]
    assert equally_spaced(10, 4) == [0, 3, 6, 9]
    assert (equally_spaced(9, 1), equally_spaced(1, 3), equally_spaced(2, 4)) == ([4], [0, 0, 0], [0, 0, 1, 1])
    drawn = [random_places(90, 10, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] == sorted(set(drawn[0])) and len(drawn[0]) == 10
    assert random_places(2, 4, torch.Generator()) == [0, 0, 1, 1]


def test_a_video_or_a_range_of_it_is_one_sample_with_one_target(tmp_path):
    listed = samples(site_of(tmp_path, "appendix300", 9, 4), "train", GRADE)
    assert [(sample.video, numbers(sample)) for sample in listed] == [("001", [0, 4, 8]), ("002", [0, 4, 8])]
    item = read_sample(listed[1])
    assert (item.images.shape, item.targets["grade"].shape, int(item.targets["grade"])) == ((3, 64, 80, 3), (), 1)
    site = site_of(tmp_path, "appendix300", 9, split={"train": [{"001": [2, 7]}], "test": ["002"]})
    assert numbers(samples(site, "train", GRADE)[0]) == [2, 4, 6]


def test_training_draws_new_frames_each_time_and_reading_does_not(tmp_path):
    site = site_of(tmp_path, "appendix300", 9, 4)
    spec = SampleSpec(("grade",), frames=3, targets_of="video", random_frames=True)
    dataset = SampleDataset(samples(site, "train", spec), height=16, width=20, site=site)
    options = {"batch_size": 2, "iterations": 4, "augment": False}
    first, again = (list(batches(dataset, generator=torch.Generator().manual_seed(3), **options)) for _ in range(2))
    assert all(torch.equal(a["image"], b["image"]) for a, b in zip(first, again, strict=True))
    assert first[0]["image"].shape == (2, 3, 3, 16, 20) and sorted(first[0]["grade"].tolist()) == [0, 1]
    assert len({batch["image"].sum().item() for batch in first}) > 1
    np.testing.assert_array_equal(dataset.arrays(0)[0], dataset.arrays(0)[0])


def test_a_sequence_has_every_frame_at_a_rate_and_its_target(tmp_path):
    site = site_of(tmp_path, "cholect45", 7, 4)  # a frame each 3 s
    whole, half = (SampleSpec(("phase",), targets_of="sequence", interval=interval) for interval in (0.0, 6.0))
    (sample, _), (thin, _) = samples(site, "train", whole), samples(site, "train", half)
    assert (numbers(sample), numbers(thin)) == ([0, 3, 6, 9, 12, 15, 18], [0, 6, 12, 18])
    assert read_sample(sample).targets["phase"].tolist() == list(range(7))
    dataset = SampleDataset([sample, thin], height=16, width=20, site=site)
    means = dataset.sequence(1, lambda frames: {"features/0": torch.from_numpy(frames).float().mean((1, 2))})
    assert means["features/0"].shape == (4, 3) and means["phase"].tolist() == [0, 2, 4, 6]
    with pytest.raises(ValueError, match="do not stack to a batch; write batch_size: 1 for whole sequences"):
        collate([dataset[0], dataset[1]])
    with pytest.raises(SiteError, match=r"the task needs sequences of frames 4 s apart,.*every 3 s"):
        samples(site, "train", SampleSpec(("phase",), targets_of="sequence", interval=4.0))


def test_a_video_with_too_few_frames_is_named_and_refused_or_set_aside(tmp_path):
    site = site_of(tmp_path, "appendix300", 3, 7)
    (tmp_path / "data/videos/004/000002.jpg").unlink()
    with pytest.raises(SiteError, match=r"004: 004 has 2 frames, and the task needs 3 of each video.*\(1 of 5 frames"):
        readable_samples(site, "train", GRADE)
    readable, aside = readable_samples(replace(site, quarantine=0.2), "train", GRADE)
    assert ([s.video for s in readable], [s.video for s in aside]) == (["001", "002", "003", "005"], ["004"])


def test_impossible_samples_are_refused(tmp_path):
    for wrong in ({"frames": 2, "interval": 1.0, "targets_of": "video"}, {"frames": 2, "targets_of": "sequence"}):
        with pytest.raises(ValueError, match=r"cannot (give|have)"):
            SampleSpec(("phase",), **wrong)
    with pytest.raises(ValueError, match="random_frames needs whole videos"):
        SampleSpec(random_frames=True)
    with pytest.raises(SiteError, match="another target at frame 3 than at frame 0; ask for targets of frames"):
        samples(site_of(tmp_path, "cholect45", frames=3), "train", SampleSpec(("phase",), targets_of="video"))
    with pytest.raises(SiteError, match="'history: false' hides earlier frames"):
        samples(site_of(tmp_path / "b", "appendix300", history=False), "train", GRADE)
