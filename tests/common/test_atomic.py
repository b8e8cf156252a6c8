"""What is written is whole or not there, also on a disk that is full."""

import os
import re
import resource
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from shared_components.common import atomic
from shared_components.common.atomic import NotWritten, atomically, write_json, write_text
from shared_components.core.evaluation import write_picture
from shared_components.networks import checkpoints
from shared_components.networks.checkpoints import save_weights
from shared_components.reporting.tensorboard import write_scalars
from shared_components.scenes.writers import write_image

NOISE = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)


@contextmanager
def full_disk(room):
    """Let no file of this process grow beyond some bytes: the kernel refuses the rest, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


WRITERS = {
    "a.png": lambda path: write_picture(path, NOISE), "mask.png": lambda path: write_picture(path, NOISE[..., 0]),
    "scene.png": lambda path: write_image(path, NOISE), "a.txt": lambda path: write_text(path, "x" * 5000),
    "a.json": lambda path: write_json(path, list(range(2000))),
    "a.safetensors": lambda path: save_weights(path, {"w": torch.zeros(5000)}),
}  # fmt: skip
SENTENCE = r"could not be written \(File too large\); check the disk's space and the folder's rights$"
"""What the kernel says at that limit, without the words of the library that wrote."""


@pytest.mark.parametrize("room", [0, 1000])
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_an_error_and_leaves_the_old_file_alone(tmp_path, name, room):
    path = tmp_path / name
    path.write_bytes(b"old")
    with full_disk(room), pytest.raises(NotWritten, match=f"^{re.escape(str(path))}: {SENTENCE}"):
        WRITERS[name](path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_errors_without_a_number_or_a_name_are_said_in_their_own_words(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "save_file", Mock(side_effect=SafetensorError("the header is too large")))
    with pytest.raises(NotWritten, match=r"could not be written \(the header is too large\)"):
        save_weights(tmp_path / "a.safetensors", {"w": torch.zeros(1)})
    full = OSError(28, "No space left on device")  # without a name, as its thread does
    monkeypatch.setattr(Path, "open", Mock(side_effect=full))
    with pytest.raises(NotWritten, match=r"/tensorboard: could not be written \(No space left on device\)"):
        write_scalars(tmp_path / "tensorboard", {"round": 0, "loss": 1.0})


def test_a_file_is_flushed_before_it_gets_its_name_and_its_folder_after(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, os.replace

    def flushed(number):
        done.append(os.readlink(f"/proc/self/fd/{number}"))
        fsync(number)

    def renamed(source, target):
        done.append("renamed")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    write_text(tmp_path / "a", "text")
    assert done == [str(tmp_path / f".a.{os.getpid()}"), "renamed", str(tmp_path)]


def test_an_error_at_the_flush_leaves_the_old_file_also_on_a_read_only_disk(tmp_path, monkeypatch):
    """Where a disk is across a network, the error comes with the flush and not with the write."""
    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(NotWritten, match=r"No space left on device.*disk's space"):
        write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old" and len(list(tmp_path.iterdir())) == 1
    refused = Mock(side_effect=OSError(30, "Read-only file system"))
    monkeypatch.setattr(os, "fsync", refused)
    monkeypatch.setattr("pathlib.Path.unlink", refused)
    with pytest.raises(NotWritten, match=r"a: could not be written \(Read-only file system\)"):
        write_text(tmp_path / "a", "new")


def test_a_writer_that_says_nothing_and_writes_nothing_is_noticed(tmp_path):
    with pytest.raises(OSError, match="could not be written"), atomically(tmp_path / "a"):
        pass
    assert not list(tmp_path.iterdir())


def test_windows_flushes_what_is_open_to_write_and_no_folder(tmp_path, monkeypatch):
    """There os.open refuses a folder, and os.fsync a file that was opened to read."""
    (tmp_path / "file").touch()
    opened = []

    def refusing(path, flags):
        assert flags == os.O_RDWR and not Path(path).is_dir()
        opened.append(Path(path).name)
        return os_open(path, flags)

    os_open = os.open
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "open", refusing)
        patch.setattr(atomic.sys, "platform", "win32")
        for name in ("file", "."):
            atomic.flush(tmp_path / name)
    assert opened == ["file"]
