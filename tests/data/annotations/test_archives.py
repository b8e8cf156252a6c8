"""Zip files of annotations: the same masks as unpacked files, and archives that are refused with nothing written."""

import stat
import zipfile
from pathlib import Path

import pytest

from shared_components.data.annotations import archives
from tests.data.annotations.test_masks_command import coco_file, convert
from tests.data.annotations.writers import WRITERS


def zipped(files: dict[str, bytes], path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def masks(root: Path) -> dict[str, bytes]:
    folder = root / "masks"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", WRITERS)
def test_a_zip_file_gives_the_masks_of_its_files(name, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "TemporaryDirectory", lambda prefix: temporary(prefix, dir=tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    place = WRITERS[name](tmp_path)
    assert convert(tmp_path, place) == 0
    expected = masks(tmp_path)
    (tmp_path / "masks").rename(tmp_path / "plain")
    folder = place if place.is_dir() else place.parent
    kinds = (".json", ".xml", ".yaml", ".txt", ".nrrd")
    files = [path for path in folder.rglob("*") if path.suffix in kinds and "plain" not in path.parts]
    content = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    archive = zipped(content | {"images/extra.png": b"x"}, tmp_path / "export.ZIP")
    assert convert(tmp_path, archive) == 0 and masks(tmp_path) == expected
    assert not list((tmp_path / "temporary").iterdir())


temporary = archives.TemporaryDirectory


def refused(archive: Path, root: Path, capsys) -> str:
    """Return the error message of an archive that is refused."""
    assert convert(root, archive) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(archive) in error
    assert not list(root.rglob("*mask*"))
    return error


@pytest.mark.parametrize("name", ["../../evil.json", "/tmp/evil.json", "..\\evil.json", "C:\\evil.json"])
def test_a_name_that_leads_out_of_the_archive_is_refused(name, tmp_path, capsys):
    content = coco_file(tmp_path, [("a", [0, 0, 2, 2])]).read_bytes()
    archive = zipped({"coco.json": content, name: content}, tmp_path / "export.zip")
    assert "which leads out of it; export the annotations again" in refused(archive, tmp_path, capsys)
    assert not list(tmp_path.parent.glob("evil*"))


def test_an_archive_that_unpacks_to_more_than_the_limit_is_refused(tmp_path, monkeypatch, capsys):
    coco_file(tmp_path, [("a", [0, 0, 2, 2])])
    archive = zipped({"a.json": bytes(600), "b.json": bytes(600)}, tmp_path / "export.zip")
    monkeypatch.setattr(archives, "_MOST_BYTES", 1000)
    assert "contains more than 1000 bytes of annotations" in refused(archive, tmp_path, capsys)
    monkeypatch.setattr(archives, "_MOST_FILES", 1)
    assert "contains 2 files, more than 1" in refused(archive, tmp_path, capsys)


def test_a_declared_size_that_is_too_small_unpacks_no_more(tmp_path, capsys):
    coco_file(tmp_path, [("a", [0, 0, 2, 2])])
    archive = zipped({"a.json": bytes(100_000)}, tmp_path / "export.zip")
    archive.write_bytes(archive.read_bytes().replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    assert "is not a readable zip file (Bad CRC-32" in refused(archive, tmp_path, capsys)


def test_a_link_in_an_archive_is_not_followed(tmp_path, capsys):
    coco_file(tmp_path, [("a", [0, 0, 2, 2])])
    link = zipfile.ZipInfo("annotations.json")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.writestr(link, str(tmp_path / "coco.json"))
    assert "contains no annotation files of COCO" in refused(tmp_path / "export.zip", tmp_path, capsys)


def test_damaged_encrypted_and_repeated_files_are_refused(tmp_path, capsys):
    content = coco_file(tmp_path, [("a", [0, 0, 2, 2])]).read_bytes()
    archive = zipped({"a.json": content}, tmp_path / "export.zip")
    whole = archive.read_bytes()
    archive.write_bytes(whole[:100])
    assert "is not a readable zip file" in refused(archive, tmp_path, capsys)
    central = whole.index(b"PK\x01\x02") + 8  # general purpose flags of the first file
    archive.write_bytes(whole[:central] + b"\x01" + whole[central + 1 :])
    assert "has the encrypted file 'a.json'; unpack it" in refused(archive, tmp_path, capsys)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(archive, "w") as repeated:
        repeated.writestr("a.json", content)
        repeated.writestr("a.json", content)
    assert "contains 'a.json' twice" in refused(archive, tmp_path, capsys)


def test_an_error_in_a_file_of_an_archive_names_the_archive_and_the_file(tmp_path, capsys):
    content = coco_file(tmp_path, [("a", [0, 0, 2, 2])]).read_text().replace('"width": 32', '"width": 33')
    archive = zipped({"annotations/a.json": content.encode()}, tmp_path / "export.zip")
    assert f"{archive}/annotations/a.json: annotates" in refused(archive, tmp_path, capsys)
