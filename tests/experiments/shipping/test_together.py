"""Files that belong together change together."""

import os

import pytest

from shared_components.experiments.shipping.weights import write_together


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_all_are_written_and_nothing_stays_beside(tmp_path):
    write_together({tmp_path / "a" / "x": b"1", tmp_path / "b" / "y": b"2"})
    assert files(tmp_path) == {"a/x": b"1", "b/y": b"2"}


@pytest.mark.parametrize("last", [1, 2])
def test_where_one_cannot_be_put_in_place_all_are_as_before(tmp_path, monkeypatch, last):
    (tmp_path / "x").write_bytes(b"old")
    calls = []

    def replace(source, target, rename=os.replace):
        calls.append(target)
        if len(calls) == last:
            raise OSError("disk full")
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="disk full"):
        write_together({tmp_path / "x": b"1", tmp_path / "new": b"2"})
    assert files(tmp_path) == {"x": b"old"}


def test_where_one_cannot_be_written_beside_none_is_renamed(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "file").write_bytes(b"no folder")
    with pytest.raises(OSError):
        write_together({tmp_path / "x": b"1", tmp_path / "file" / "y": b"2"})
    assert files(tmp_path) == {"x": b"old", "file": b"no folder"}
