"""Files that would stall or end a program are refused quickly, with one sentence each."""

import gzip
import itertools
import os
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from shared_components.cli import main
from shared_components.data.custom.description import refuse_template
from shared_components.data.files import images as files
from shared_components.data.files.images import MOST_PIXELS, DataError, read_ids, read_npy, read_rgb
from shared_components.data.files.label_names import label_names
from shared_components.data.files.video import frame_count
from shared_components.data.readers import grasp
from shared_components.data.readers.sar_rarp50 import unpack
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from tests.data import volumes
from tests.data.custom.conftest import write_video


def png(width, height, *, rows=b""):
    """Return a grey PNG of so many pixels, all 0: 1000 times smaller than its pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("lines", "sentence"), [
    ("? {a: b}\n: c\n", "has a mapping or a list of lists as a key"),
    ("text_encoder: ~nosuchuser/clip\n", "'text_encoder' is '~nosuchuser/clip' ("),
    ("text_vectors: ~nosuchuser/a.safetensors\n", "'text_vectors' is '~nosuchuser/a.safetensors' ("),
    ("also_trains_on: ~nosuchuser/site.yaml\n", "'also_trains_on' is '~nosuchuser/site.yaml' ("),
    ("text: " + "x" * 2_000_000 + "\n", "is larger than 1048576 bytes; shorten it"),
])  # fmt: skip
def test_hostile_yaml_is_refused_in_one_sentence(lines, sentence, make_site, capsys):
    path = make_site()
    path.write_text(f"{path.read_text()}{lines}")
    assert main(["check-data", "--fast", str(path)]) == 1
    out = capsys.readouterr().out
    assert f"{path}: {sentence}" in out and "Traceback" not in out


@pytest.mark.parametrize(("key", "value"), [
    *(("root", root) for root in ("~nosuchuser/data", "x" * 5000, "a\nb")),
    *(("name", name) for name in ("../other", "a/b", "a\\b", ".hidden", "two\nlines", "\x1b[31mred", " a", "x" * 101)),
])  # fmt: skip
def test_a_root_or_name_that_leaves_its_folder_or_its_line_is_refused(key, value, make_site):
    sentence = {"root": "'root' is ", "name": r"the site's name is .*give it by 'name'"}[key]
    with pytest.raises(SiteError, match=sentence):
        load_site(make_site(**{key: value}))


@pytest.mark.parametrize("template", ["../{video}", "./{video}", "/{video}", "a\n{video}", "a\\{video}", 3, None])
@pytest.mark.parametrize("key", ["images", "masks"])
def test_a_template_that_leaves_the_root_or_its_line_is_refused(template, key):
    with pytest.raises(ValueError, match=f"'{key}' is .*; write a path below 'root'"):
        refuse_template(key, template)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("read", [read_rgb, read_ids, read_npy, volumes.read_labels, frame_count, load_site])
def test_a_pipe_is_refused_and_not_waited_for(read, tmp_path):
    os.mkfifo(path := tmp_path / "pipe.nii.gz")
    with pytest.raises((DataError, SiteError), match="is a pipe, a socket or a device; put an ordinary file"):
        read(path)


@pytest.mark.timeout(20)
def test_a_pipe_for_a_video_to_unpack_is_refused_and_a_pipe_among_label_files_is_ignored(tmp_path):
    (tmp_path / "segmentation").mkdir()
    cv2.imwrite(str(tmp_path / "segmentation" / "000000000.png"), np.zeros((8, 8), np.uint8))
    os.mkfifo(tmp_path / "video_left.avi")
    with pytest.raises(DataError, match="is a pipe, a socket or a device; put an ordinary file"):
        unpack(tmp_path)
    os.mkfifo(tmp_path / "labels.txt")
    assert label_names([tmp_path]) == {}


def test_descriptions_of_images_and_labels_have_bounds(tmp_path):
    path = tmp_path / "list.json"
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match="does not list its images as COCO files do"):
        grasp._listed(path, 0)
    path = tmp_path / "labels.txt"
    path.write_text("# ITK-SnAP Label Description File\n" + "#" * (1 << 20))
    with pytest.raises(DataError, match="is larger than"):
        label_names([tmp_path])
    path.write_text("# ITK-SnAP Label Description File\n" + "9" * 5000 + ' 1 1 1 1 1 1 "grasper"\n')
    with pytest.raises(DataError, match="has no label description in line 2"):
        label_names([tmp_path])


@pytest.mark.parametrize("side", [8193, 40_000, 2**31 - 1])
def test_a_small_file_of_many_pixels_is_refused_before_it_is_unpacked(side, tmp_path):
    path = tmp_path / "bomb.png"
    path.write_bytes(png(side, side))
    for read in (read_rgb, read_ids):
        with pytest.raises(DataError, match=f"is {side}x{side}, more than {MOST_PIXELS} pixels"):
            read(path)


def test_a_jpeg_of_many_pixels_is_refused_and_others_are_read(tmp_path):
    path, picture = tmp_path / "a.jpg", np.full((48, 64, 3), 90, np.uint8)
    cv2.imwrite(str(path), picture, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])
    assert read_rgb(path).shape == (48, 64, 3)
    data = bytearray(path.read_bytes())
    place = data.index(b"\xff\xc2") + 5
    assert data[place : place + 4] == struct.pack(">HH", 48, 64)
    data[place : place + 4] = struct.pack(">HH", 65_000, 65_000)
    path.write_bytes(data)
    with pytest.raises(DataError, match="is 65000x65000"):
        read_rgb(path)
    for between in (b"\x00", b"\xff", b"\xff\x00"):  # over which libjpeg goes
        path.write_bytes(data[: place - 5] + between + data[place - 5 :])
        with pytest.raises(DataError, match="is 65000x65000"):
            read_rgb(path)
    path.write_bytes(data[: place - 5] + b"\xff\xd9")
    with pytest.raises(DataError, match="is not a readable image"):
        read_rgb(path)


@pytest.mark.parametrize("format", ["GIF", "WEBP"])
def test_a_picture_is_judged_by_its_content_and_not_by_its_ending(format, tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.new("L", (64, 48)).save(path, format=format)
    assert read_rgb(path).shape == (48, 64, 3)
    monkeypatch.setattr(files, "MOST_PIXELS", 500)
    with pytest.raises(DataError, match="is 64x48, more than 500 pixels"):
        read_rgb(path)


@pytest.mark.parametrize(
    "text", ["ffconcat version 1.0\nfile other.mp4\n", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nother.mp4\n"]
)
def test_a_list_of_videos_and_a_video_of_many_pixels_are_refused_before_decoding(text, tmp_path, monkeypatch):
    """FFmpeg would read the other file, or wait for files that a list promises."""
    write_video(tmp_path / "other.mp4", frames=3)
    (tmp_path / "a.mp4").write_text(text)
    with pytest.raises(DataError, match=r"a\.mp4: cannot be read"):
        frame_count(tmp_path / "a.mp4")
    assert frame_count(tmp_path / "other.mp4") == 3
    write_video(tmp_path / "large.mp4", frames=2)
    monkeypatch.setattr(files, "MOST_PIXELS", 500)
    with pytest.raises(DataError, match="more than 500 pixels"):
        frame_count(tmp_path / "large.mp4")


ONE = struct.pack("<I", 1)


@pytest.mark.parametrize("ending", [".bmp", ".tif"])
def test_other_formats_of_many_pixels_are_refused(ending, tmp_path):
    path = tmp_path / f"a{ending}"
    cv2.imwrite(str(path), np.zeros((64, 16), np.uint8))
    assert read_ids(path).shape == (64, 16)
    data = bytearray(path.read_bytes())
    if ending == ".bmp":
        data[18:26] = struct.pack("<ii", 20_000, 20_000)
    else:
        for tag in (256, 257):  # width and height become one long
            start = struct.pack("<H", tag)
            place = next(i for i in range(8, len(data)) if data[i : i + 2] == start and data[i + 4 : i + 8] == ONE)
            data[place + 2 : place + 4] = struct.pack("<H", 4)
            data[place + 8 : place + 12] = struct.pack("<I", 20_000)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"is 20000x20000|is too large to be read"):
        read_ids(path)


@pytest.mark.parametrize(("shape", "sentence"), [
    ((32767, 32767, 32767), "is 32767x32767, more than"), ((-5, 8, 8), "volume"), ((8, 8, 32767), "not a readable"),
])  # fmt: skip
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_a_header_of_absurd_sizes_is_refused(shape, sentence, ending, tmp_path):
    path = tmp_path / f"a{ending}"
    volumes.write_labels(path, np.zeros((2, 8, 8), np.uint8))
    data = bytearray(gzip.decompress(path.read_bytes()) if ending == ".nii.gz" else path.read_bytes())
    data[42:48] = struct.pack("<hhh", *shape)
    path.write_bytes(gzip.compress(data) if ending == ".nii.gz" else data)
    with pytest.raises(DataError, match=sentence):
        volumes.read_labels(path)


def test_no_byte_of_a_header_raises_anything_else(tmp_path):
    """Every byte of the header becomes 255, then 128: what follows is labels or one sentence."""
    path: Path = tmp_path / "a.nii"
    volumes.write_labels(path, np.zeros((2, 8, 8), np.uint8))
    good, refused = path.read_bytes(), 0
    for place, value in itertools.product(range(352), (255, 128)):
        path.write_bytes(good[:place] + bytes([value]) + good[place + 1 :])
        try:
            volumes.read_labels(path)
        except DataError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 40
