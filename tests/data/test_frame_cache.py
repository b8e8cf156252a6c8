"""Decoded frames on disk: read instead of the data set's files, never stale, and no condition of training."""

import os
import shutil
from collections import namedtuple

import numpy as np
import pytest
import torch

from shared_components.data import dataset as datasets
from shared_components.data import frame_cache
from shared_components.data.dataset import SampleDataset
from shared_components.data.frame_cache import FrameCache
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site

SIZE = {"height": 32, "width": 40}


@pytest.fixture
def open_dataset(make_site, tmp_path):
    site = load_site(make_site(frames=4))

    def make(*, limit=10**9, **size):
        cache = FrameCache(tmp_path / "cache", limit=limit)
        return SampleDataset(samples(site, "train"), **{**SIZE, **size}, site=site, cache=cache)

    return make


@pytest.fixture
def decoded(monkeypatch) -> list:
    """List every image and mask file that is decoded."""
    files = []
    for name in ("read_image", "read_target"):
        read = getattr(datasets, name)
        monkeypatch.setattr(
            datasets, name, lambda *args, read=read, **known: (files.append(args[-1]), read(*args, **known))[1]
        )
    return files


def items(dataset):
    return [dataset[index] for index in range(len(dataset))]


def same(ours, theirs):
    return all(torch.equal(a[name], b[name]) for a, b in zip(ours, theirs, strict=True) for name in ("image", "label"))


def test_frames_and_masks_are_decoded_once_for_all_rounds(open_dataset, decoded):
    first = items(open_dataset())
    assert len(decoded) == 2 * len(first)
    assert same(items(open_dataset()), first)
    assert len(decoded) == 2 * len(first)


def test_frames_at_another_size_and_changed_files_are_decoded_again(open_dataset, decoded):
    first = items(open_dataset())
    decoded.clear()
    assert items(open_dataset(height=16))[0]["image"].shape == (3, 16, 40)
    assert len(decoded) == 2 * len(first)

    decoded.clear()
    dataset = open_dataset()
    (path,) = dataset.samples[1].images
    shutil.copy(dataset.samples[2].images[0], path)
    os.utime(path, ns=(1, 1))
    changed = items(dataset)
    assert torch.equal(changed[1]["image"], first[2]["image"])
    assert len(decoded) == 2  # the frame, and its mask, whose size is compared with the frame's


def test_damaged_and_incomplete_files_are_decoded_again(open_dataset, tmp_path, decoded):
    first = items(open_dataset())
    (folder,) = (tmp_path / "cache").iterdir()
    cached = sorted(folder.iterdir())
    cached[0].write_bytes(cached[0].read_bytes()[:-1])
    left = folder / f".{cached[0].name}.1.2"
    left.write_bytes(b"cut off by a kill")
    other_boot = tmp_path / "cache" / "before"
    other_boot.mkdir()
    decoded.clear()
    assert same(items(open_dataset()), first)
    assert len(decoded) == 1
    assert not left.exists() and not other_boot.exists()


@pytest.mark.parametrize("reason", ["limit", "space", "error"])
def test_a_full_cache_says_so_once_and_training_goes_on(open_dataset, monkeypatch, caplog, reason):
    expected = items(open_dataset(limit=0))
    assert not caplog.records
    if reason == "space":
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, frame_cache.RESERVE))
    if reason == "error":

        def full(beside, path):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
    dataset = open_dataset(limit=32 * 40 * 5 if reason == "limit" else 10**9)
    assert same(items(dataset), expected) and same(items(dataset), expected)
    (record,) = caplog.records
    texts = {
        "limit": "has reached the limit frame_cache_gb",
        "space": "less than 2 GB of its disk free",
        "error": "No space left",
    }
    assert texts[reason] in record.getMessage()


def test_the_limit_counts_files_of_earlier_rounds(tmp_path):
    folder, array = tmp_path / "cache", np.zeros((4, 4), np.uint8)
    source = tmp_path / "frame.png"
    source.write_bytes(b"x")
    size = array.nbytes + 8
    cache = FrameCache(folder, limit=size)
    assert cache.add(cache.path([source], "label"), array, (4, 4))
    again = FrameCache(folder, limit=2 * size - 1)
    assert not again.add(again.path([source], "depth"), array, (4, 4))
    larger = FrameCache(folder, limit=2 * size)
    assert larger.add(larger.path([source], "depth"), array, (4, 4))
    assert larger.path([tmp_path / "missing.png"], "label") is None


def test_processes_that_share_a_folder_share_its_room_and_only_the_first_removes_files(tmp_path):
    frame = np.ones((4, 4, 3), np.uint8)
    bytes_of_one = frame.nbytes + 8
    first = FrameCache(tmp_path, limit=4 * bytes_of_one, sharers=2)
    (incomplete := first._folder / ".frame.1.2").write_bytes(b"1234")
    second = FrameCache(tmp_path, limit=4 * bytes_of_one + 4, sharers=2, first=False)
    for cache, name in ((first, "a"), (second, "b")):
        assert [cache.add(first._folder / f"{name}{i}", frame, (4, 4)) for i in range(3)] == [True, True, False]
    assert incomplete.exists()
    FrameCache(tmp_path, limit=0)
    assert not incomplete.exists() and len(list(first._folder.iterdir())) == 4
