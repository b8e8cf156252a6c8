"""The search of recorded bytes finds what is there, in whatever kind of numbers, and nothing else."""

import json

import numpy as np
import pytest
import torch

from evidence.production import search as searching
from evidence.production.search import file_windows, patterns, search, windows


@pytest.fixture
def tensors():
    drawn = torch.Generator().manual_seed(1)
    return {name: torch.randn(40, 30, generator=drawn) for name in ("head", "other")}


def record(folder, *parts):
    """Write parts between bytes drawn at random, the first at an odd place."""
    noise = np.random.default_rng(0)
    path = folder / "1.frames"
    path.write_bytes(b"".join(noise.bytes(1013) + part for part in parts) + noise.bytes(99))
    return [path]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_tensor_is_found_in_every_kind_of_number_and_no_other(tmp_path, tensors, kind):
    sent = tensors["head"].to(kind).view(torch.uint8).numpy().tobytes()
    files = record(tmp_path, sent)
    assert search(patterns(tensors), files) == {"head": files[0]}


def test_a_tensor_is_found_as_text(tmp_path, tensors):
    sent = json.dumps(tensors["head"].reshape(-1).tolist()).encode()
    assert set(search(patterns(tensors), record(tmp_path, sent))) == {"head"}


def test_a_tensor_is_found_though_frames_cut_it_and_its_name_is_another_one_s(tmp_path, tensors):
    """Frames of 1,000 bytes with headers between: no border hides all windows."""
    data = tensors["head"].numpy().tobytes()
    frames = [b"other.weight" + data[at : at + 1000] for at in range(0, len(data), 1000)]
    assert set(search(patterns(tensors), record(tmp_path, *frames))) == {"head"}


def test_one_window_of_a_slice_is_enough(tmp_path, tensors):
    rows = tensors["head"][7:9].numpy().tobytes()
    assert set(search(patterns({"rows": tensors["head"][7:9], **tensors}), record(tmp_path, rows))) >= {"rows"}


def test_what_stands_across_two_slabs_is_found(tmp_path, tensors, monkeypatch):
    monkeypatch.setattr(searching, "SLAB", 1024)
    small = {"bias": tensors["head"][0, :4]}  # 16 bytes, one window
    for at in range(1000, 1048, 4):
        path = tmp_path / f"{at}.frames"
        path.write_bytes(bytes(at) + small["bias"].numpy().tobytes() + bytes(3000))
        assert set(search(patterns(small), [path])) == {"bias"}, at


def test_numbers_that_tell_nothing_are_not_searched_for():
    assert not patterns({"zeros": torch.zeros(99), "ones": torch.ones(99), "count": torch.tensor(7)})
    assert windows(torch.arange(4.0) + 0.1) and not windows(torch.arange(3.0) + 0.1)


def test_nothing_is_found_in_nothing(tmp_path, tensors):
    empty = tmp_path / "1.frames"
    empty.touch()
    assert search(patterns(tensors), [empty]) == {} == search({}, record(tmp_path, b"x" * 99))


def test_a_file_is_found_by_its_bytes(tmp_path):
    picture = tmp_path / "frame.png"
    picture.write_bytes(np.random.default_rng(5).bytes(5000))
    assert search({"picture": file_windows(picture)}, record(tmp_path, picture.read_bytes()[100:]))
