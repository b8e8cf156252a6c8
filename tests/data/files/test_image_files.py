"""Image files of recorders, label tools and microscopes are read as meant, or refused with a remedy."""

import io
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from shared_components.cli import main
from shared_components.data.check import check_site
from shared_components.data.custom.masks import read_mask
from shared_components.data.files.images import DataError, SeveralPictures, read_colours, read_ids, read_rgb, turned
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from tests.data.conftest import write, write_yaml

RGB = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
IDS = np.repeat(np.arange(4, dtype=np.uint8), 4)[:, None].repeat(24, 1)  # (16, 24), a band of each id


def tiff(*pages: tuple[np.ndarray, dict[int, tuple[int, list[int]]]], photometric: int = 1) -> bytes:
    """Return an uncompressed TIFF byte by byte; each page has values (H, W[, C]) and further tags (type, numbers)."""
    out, link = bytearray(b"II*\0" + bytes(4)), 4
    for values, more in pages:
        samples_of_pixel, start = values.shape[2] if values.ndim == 3 else 1, len(out)
        out += values.tobytes()
        tags: dict[int, tuple[int, list[int]]] = {
            256: (4, [values.shape[1]]), 257: (4, [values.shape[0]]),
            258: (3, [values.itemsize * 8] * samples_of_pixel), 259: (3, [1]),
            262: (3, [2 if samples_of_pixel > 1 else photometric]), 273: (4, [start]),
            277: (3, [samples_of_pixel]), 278: (4, [values.shape[0]]), 279: (4, [values.nbytes]), **more,
        }  # fmt: skip
        struct.pack_into("<I", out, link, len(out))
        entries, beyond, after = struct.pack("<H", len(tags)), b"", len(out) + 2 + 12 * len(tags) + 4
        for tag in sorted(tags):
            kind, numbers = tags[tag]
            data = struct.pack(f"<{len(numbers)}{ {2: 'B', 3: 'H', 4: 'I'}[kind] }".replace(" ", ""), *numbers)
            entries += struct.pack("<HHI", tag, kind, len(numbers))
            entries += data.ljust(4, b"\0") if len(data) <= 4 else struct.pack("<I", after + len(beyond))
            beyond += data if len(data) > 4 else b""
        link = len(out) + len(entries)
        out += entries + bytes(4) + beyond
    return bytes(out)


def saved(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def placed(folder: Path, name: str, data: bytes) -> Path:
    (folder / name).write_bytes(data)
    return folder / name


JPEG = saved(Image.fromarray(RGB), "JPEG", quality=100, subsampling=0)
PNG = saved(Image.fromarray(RGB), "PNG")
OTHER = saved(Image.fromarray(255 - RGB), "JPEG")


@pytest.mark.parametrize("whole", [JPEG, saved(Image.fromarray(RGB), "JPEG", progressive=True), PNG])
@pytest.mark.parametrize("after", [bytes(5000), OTHER, b"\xff" * 9, np.random.default_rng(1).bytes(3000)])
def test_bytes_after_the_end_of_a_picture_do_not_matter(whole, after, tmp_path):
    image = read_rgb(placed(tmp_path, "a.img", whole + after))
    assert np.abs(image.astype(int) - np.asarray(Image.open(io.BytesIO(whole)))).max() <= 3  # two decoders


@pytest.mark.parametrize("whole", [JPEG, saved(Image.fromarray(RGB), "JPEG", progressive=True), PNG])
@pytest.mark.parametrize("after", [b"", bytes(5000), OTHER, PNG])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_picture_that_was_cut_off_is_refused_whatever_follows(whole, after, share, tmp_path):
    path = placed(tmp_path, "a.img", whole[: int(len(whole) * share)] + after)
    with pytest.raises(DataError, match="is not a readable image"):
        read_rgb(path)


def test_the_thumbnail_of_a_jpeg_is_not_its_end(tmp_path):
    thumbnail = b"Exif\0\0II*\0\x08\0\0\0" + bytes(6) + OTHER
    whole = JPEG[:2] + b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail + JPEG[2:]
    assert np.abs(read_rgb(placed(tmp_path, "a.jpg", whole)).astype(int) - RGB).max() <= 3
    with pytest.raises(DataError, match="is not a readable image"):
        read_rgb(placed(tmp_path, "b.jpg", whole[: -len(JPEG) // 2]))


def described(text: str) -> dict[int, tuple[int, list[int]]]:
    return {270: (2, [*text.encode(), 0])}


@pytest.mark.parametrize(("data", "count"), [
    (tiff(*[(IDS, {})] * 6), 6), (tiff(*[(RGB, {})] * 3), 3),
    (tiff((IDS, described("ImageJ=1.54f\nimages=12\nchannels=3\nframes=4\nhyperstack=true\n"))), 12),
    (tiff((IDS, described('{"shape": [5, 16, 24]}'))), 5), (tiff((IDS, {32997: (4, [7])})), 7),
    *[(saved(Image.fromarray(RGB), kind, save_all=True, append_images=[Image.fromarray(255 - RGB)]), 2)
      for kind in ("PNG", "GIF", "WEBP")],
], ids=["pages", "pages in colour", "ImageJ", "tifffile", "depth", "APNG", "GIF", "WebP"])  # fmt: skip
def test_a_file_of_several_pages_is_refused_with_their_number(data, count, tmp_path):
    path = placed(tmp_path, "op0.tif", data)
    for read in (read_rgb, read_ids, read_colours, lambda path: read_mask(path, coloured=False)):
        with pytest.raises(SeveralPictures, match=rf"contains {count} pages or frames.*magick op0\.tif op0_%04d\.png"):
            read(path)


@pytest.mark.parametrize("more", [
    {}, described("ImageJ=1.54f\n"), described('{"shape": [16, 24, 3]}'), described('{"shape": "x"}'),
    {32997: (4, [1])},
])  # fmt: skip
def test_a_tiff_of_one_page_is_read(more, tmp_path):
    small = np.ascontiguousarray(RGB[::4, ::4])
    path = placed(tmp_path, "a.tif", tiff((RGB, more), (small, {254: (4, [1])})))  # with a small copy of itself
    np.testing.assert_array_equal(read_rgb(path), RGB)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_labels_whose_white_is_0_are_refused_and_frames_are_inverted(dtype, tmp_path):
    path = placed(tmp_path, "a.tif", tiff((IDS.astype(dtype), {}), photometric=0))
    for read in (read_ids, lambda path: read_mask(path, coloured=False), lambda path: read_mask(path, coloured=True)):
        with pytest.raises(DataError, match=r"MinIsWhite.*export it again as PNG"):
            read(path)
    if dtype == np.uint8:
        np.testing.assert_array_equal(read_rgb(path)[..., 0], 255 - IDS)
    bits, tags = np.packbits(IDS > 0, axis=1), {256: (4, [24]), 258: (3, [1])}
    with pytest.raises(DataError, match="MinIsWhite"):
        read_ids(placed(tmp_path, "a.tif", tiff((bits, tags), photometric=0)))
    path = placed(tmp_path, "b.tif", tiff((bits, tags), photometric=1))
    np.testing.assert_array_equal(read_ids(path), 255 * (IDS > 0))


def palette_file(folder: Path, greys: list[int] | list[tuple[int, int, int]], kind: str = "PNG") -> Path:
    image = Image.fromarray(IDS).convert("P")
    image.putpalette([channel for grey in greys for channel in (grey if isinstance(grey, tuple) else (grey,) * 3)])
    return placed(folder, f"a.{kind.lower()}", saved(image, kind))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF"])
@pytest.mark.parametrize(("greys", "known", "expected"), [
    ([0, 1, 2, 3], (), [0, 1, 2, 3]),
    ([3, 2, 1, 0], (), [3, 2, 1, 0]),  # as Pillow's quantize orders them
    ([0, 3, 1, 2], (), [0, 3, 1, 2]), ([0, 2, 4, 5], (), [0, 2, 4, 5]),
    ([0, 200, 100, 150], (), [0, 200, 100, 150]),  # out of order
    ([30, 20, 10, 0], (10, 20, 30), [30, 20, 10, 0]), ([0, 85, 170, 255], (85, 170, 255), [0, 85, 170, 255]),
    ([0, 85, 170, 255], (1, 2, 3), [0, 1, 2, 3]),
    ([(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 128)], (1, 2, 3), [0, 1, 2, 3]),  # colours for people
])  # fmt: skip
def test_a_palette_of_greys_is_read_as_greys_or_places_if_it_is_certain(kind, greys, known, expected, tmp_path):
    mask = read_mask(palette_file(tmp_path, greys, kind), coloured=False, known=known)
    np.testing.assert_array_equal(mask, np.array(expected)[IDS])


@pytest.mark.parametrize("known", [(), (1, 2, 3, 85, 170, 255), (7,)])
@pytest.mark.parametrize("greys", [[0, 85, 170, 255], [255, 170, 85, 0]])
def test_a_palette_of_greys_that_may_be_read_in_two_ways_is_refused(greys, known, tmp_path):
    with pytest.raises(DataError, match=r"places \[0, 1, 2, 3\] or the greys \[.*\]; export .* without a palette"):
        read_mask(palette_file(tmp_path, greys), coloured=False, known=known)


def test_site_init_reads_quantised_masks_by_the_given_ids(tmp_path):
    for number, video in enumerate("abc"):
        write(tmp_path / f"{video}/frames/f_0.png", RGB)
        (tmp_path / video / "masks").mkdir()
        Image.fromarray(IDS * (10 + 5 * (number == 0))).quantize(256).save(tmp_path / video / "masks/f_0.png")
    ids = ("--id", "10=x", "--id", "20=y", "--id", "30=z", "--id", "15=u", "--id", "45=v")
    assert main(["site", "init", str(tmp_path), "--yes", *ids]) == 0
    site = load_site(tmp_path / "site.yaml")
    label = read_sample(samples(site, "train")[0]).targets["label"]
    names = np.array([*site.classes])[label]
    assert names[0, 0] == "background" and [*dict.fromkeys(names[:, 0])][1:] == ["u", "z", "v"]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_an_alpha_channel_may_hide_no_pixel_of_a_frame_and_not_all_of_a_mask(mode, tmp_path):
    image = Image.fromarray(RGB).convert(mode)
    shown = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(read_rgb(placed(tmp_path, "a.png", saved(image, "PNG"))), shown)
    alpha = Image.new("L", image.size, 255)
    alpha.putpixel((3, 5), 254)
    image.putalpha(alpha)
    with pytest.raises(DataError, match=r"transparent pixels.*export the frames without transparency"):
        read_rgb(placed(tmp_path, "b.png", saved(image, "PNG")))
    image = Image.fromarray(RGB).convert("RGBA")
    image.putalpha(0)
    with pytest.raises(DataError, match="transparent everywhere"):
        read_mask(placed(tmp_path, "c.png", saved(image, "PNG")), coloured=True)


@pytest.mark.parametrize("options", [{"format": "PNG", "interlace": 1}, {"format": "JPEG", "quality": 100}])
def test_cmyk_and_interlaced_frames_are_shown_as_pillow_shows_them(options, tmp_path):
    image = Image.fromarray(np.repeat(RGB[:, :1], 24, 1))
    image = image.convert("CMYK") if options["format"] == "JPEG" else image
    path = placed(tmp_path, "a.img", saved(image, **options))
    assert np.abs(read_rgb(path).astype(int) - np.asarray(Image.open(path).convert("RGB"))).max() <= 4


def oriented(array: np.ndarray, turn: int, kind: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = turn
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
    return saved(Image.fromarray(array), kind, exif=exif, **options)


@pytest.mark.parametrize("turn", range(1, 9))
def test_an_array_is_turned_as_pillow_turns_an_image(turn):
    image = Image.open(io.BytesIO(oriented(RGB, turn, "PNG")))
    np.testing.assert_array_equal(turned(RGB, turn), np.asarray(ImageOps.exif_transpose(image)))


@pytest.fixture
def site_of(tmp_path):
    """Write a site with a single frame and its mask, and load it."""

    def make(frame: bytes, mask: bytes, frame_name="f_0.jpg", mask_name="f_0.png"):
        for folder, name, data in (("images", frame_name, frame), ("masks", mask_name, mask)):
            (tmp_path / folder / "v").mkdir(parents=True)
            placed(tmp_path / folder / "v", name, data)
        ids = {1: "shaft", 2: "wrist", 3: "clasper"}
        config = {"name": "a", "dataset": "frames", "root": ".", "ids": ids, "split": {"train": ["v"]}}
        return load_site(write_yaml(tmp_path / "site.yaml", config))

    return make


@pytest.mark.parametrize("turn", [5, 6, 7, 8])
@pytest.mark.parametrize("stored", ["as the image", "upright", "as the image, with its orientation", "TIFF"])
def test_a_mask_lies_on_a_turned_frame_however_it_was_stored(turn, stored, site_of):
    upright = turned(IDS, turn)
    kind = "TIFF" if stored == "TIFF" else "PNG"
    data = saved(Image.fromarray(upright if stored == "upright" else IDS), "PNG")
    if "orientation" in stored or kind == "TIFF":
        data = oriented(IDS, turn, kind)
    site = site_of(oriented(RGB, turn), data, mask_name="f_0.tif" if kind == "TIFF" else "f_0.png")
    assert check_site(site) == []
    item = read_sample(samples(site, "train")[0])
    np.testing.assert_array_equal(item.targets["label"], upright)
    assert np.abs(item.images[0].astype(int) - turned(RGB, turn)).max() <= 3


@pytest.mark.parametrize(("frame", "turn"), [(RGB, 2), (RGB, 3), (RGB, 4), (np.ascontiguousarray(RGB[:, :16]), 6)])
def test_a_mask_that_fits_a_turned_frame_in_two_ways_is_refused(frame, turn, site_of):
    mask = np.ascontiguousarray(IDS[:, : frame.shape[1]])
    site = site_of(oriented(frame, turn), saved(Image.fromarray(mask), "PNG"))
    sentence = rf"EXIF orientation {turn}, and the mask .* fits it turned and as stored; apply the orientation"
    (problem,) = check_site(site)
    assert re.search(sentence, str(problem))
    with pytest.raises(ValueError, match=sentence):
        read_sample(samples(site, "train")[0])


def test_a_mask_with_an_orientation_that_its_frame_lacks_is_refused(site_of):
    (problem,) = check_site(site_of(oriented(RGB, 1), oriented(IDS, 3, "PNG")))
    assert re.search(r"has the EXIF orientation 3, and its image .* has 1; export the mask without", str(problem))
