"""Folders as people have them: `surgfl site init` uses all of their data, or lists the files that it leaves out."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from shared_components.cli import main
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from tests.data.conftest import write
from tests.data.custom import conftest
from tests.data.custom.conftest import CLASSES, NAMED, H, W, canonical, init, photograph, values, write_video

BY_WORD = {"irrigator": 2, "bulldog": 1}
lay = partial(conftest.lay, pictured=photograph, videos=("op_1", "op_2", "op_3"), frames=3)


def lay_classes(root: Path, images: str, masks: str, *, soft: bool = False) -> None:
    """Write a binary mask for each class: `{c}` is its name."""

    def drawn(place: int, index: int) -> np.ndarray:
        mask = ((canonical(index) == place) * 255).astype(np.uint8)
        return cv2.GaussianBlur(mask, (3, 3), 0.7) if soft else mask

    for word, place in BY_WORD.items():
        lay(root, images, masks.replace("{c}", word), drawn=partial(drawn, place))


def written(root: Path) -> dict:
    return yaml.safe_load((root / "site.yaml").read_text())


@pytest.mark.parametrize(("train", "validation", "test"), [
    ("train", "val", "test"), ("Training", "Validation", "Testing"), ("train_set", "valid", "test-set"),
])  # fmt: skip
@pytest.mark.parametrize(("images", "masks"), [
    ("{v}/frames/f_{n}.png", "{v}/masks/f_{n}.png"), ("images/{v}/f_{n}.png", "masks/{v}/f_{n}.png"),
    ("all/{v}/f_{n}.jpg", "all/{v}/f_{n}_mask.png"), ("{v}_{n:03d}.jpg", "{v}_{n:03d}_mask.png"),
])  # fmt: skip
def test_folders_called_after_splits_are_the_split(images, masks, train, validation, test, tmp_path, capsys):
    videos = [f"{train}/a", f"{train}/b", f"{train}/c", f"{validation}/d", f"{test}/e"]
    lay(tmp_path, images, masks, videos=videos)
    assert init(tmp_path, *NAMED) == 0, capsys.readouterr()
    assert written(tmp_path)["split"] == {"train": videos[:3], "validation": videos[3:4], "test": videos[4:]}
    site = load_site(tmp_path)
    assert [len(samples(site, split)) for split in site.split] == [9, 3, 3]
    conftest.assert_read(tmp_path, range(3), split="test")


def test_a_video_in_no_split_s_folder_is_left_out_only_with_consent(tmp_path, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png", videos=["train/a", "train/b", "val/c", "test/d", "extra/e"])
    assert init(tmp_path, *NAMED) == 2
    output = capsys.readouterr()
    assert "would leave out 3 images in extra/ (its video is in no split)" in output.err and "--train" in output.err
    assert "videos" in output.out and not (tmp_path / "site.yaml").exists()
    assert init(tmp_path, *NAMED, "--allow-left-out") == 0
    assert [part.video for part in load_site(tmp_path).split["train"]] == ["train/a", "train/b"]


@pytest.mark.parametrize(("images", "masks", "videos"), [
    ("{v}/frame_{n:04d}_jpg.rf.{h}.jpg", "{v}/frame_{n:04d}_jpg.rf.{h}_mask.png", ["train", "valid", "test"]),
    ("images/{v}_mp4-{n}_jpg.rf.{h}.jpg", "masks/{v}_mp4-{n}_jpg.rf.{h}.png", ["op_1", "op_2", "op_3"]),
    ("images/{v}/{h:.8}-frame_{n}.jpg", "masks/{v}/{h:.8}-frame_{n}.png", ["op_1", "op_2", "op_3"]),
])  # fmt: skip
def test_frames_whose_names_have_hashes_stay_together_and_in_order(images, masks, videos, tmp_path, capsys):
    lay(tmp_path, images, masks, videos=videos, frames=6)
    assert init(tmp_path, *NAMED) == 0, capsys.readouterr()
    assert load_site(tmp_path).source.reader.videos(tmp_path) == sorted(videos)
    conftest.assert_read(tmp_path, range(6), split="test")


@pytest.mark.parametrize("ending", ["{h}", "{h:.4}", "{h:.8}-{h:.4}-{h:.4}-{h:.4}-{h:.12}"])
def test_no_frame_becomes_a_video_of_its_own(ending, tmp_path, capsys):
    lay(tmp_path, f"images/f{{n}}-{ending}.jpg", f"masks/f{{n}}-{ending}.png", videos=["x"], frames=8)
    assert init(tmp_path, *NAMED) == 0, capsys.readouterr()
    assert load_site(tmp_path).source.reader.videos(tmp_path) == [tmp_path.name]


@pytest.mark.parametrize(("images", "masks", "template"), [
    ("images/{v}/f_{n}.jpg", "masks/{v}/f_{n}_class_{c}.png", "masks/{video}/*_class_{class}.png"),
    ("images/{v}/f_{n}.jpg", "masks/{v}/{c}_f_{n}.png", "masks/{video}/{class}_*.png"),
    ("images/{v}/f_{n}.jpg", "masks/{c}/{v}/f_{n}.png", "masks/{class}/{video}/*.png"),
    ("{v}/images/f_{n}.jpg", "{v}/masks/{c}/f_{n}.png", "{video}/masks/{class}/*.png"),
    ("{v}/images/f_{n}.jpg", "{v}/masks/f_{n}/{c}.png", "{video}/masks/*/{class}.png"),
    ("{v}/f_{n}.jpg", "{v}/f_{n}_{c}.png", "{video}/*_{class}.png"),
])  # fmt: skip
def test_binary_masks_of_each_class_make_one_label(images, masks, template, tmp_path, capsys):
    lay_classes(tmp_path, images, masks)
    assert init(tmp_path, "--id", "bulldog=bulldog clamp") == 0, capsys.readouterr()
    assert written(tmp_path)["masks"] == template
    assert load_site(tmp_path).classes == CLASSES
    conftest.assert_read(tmp_path, range(3))


def test_numbers_of_classes_are_named_and_values_of_masks_are_not(tmp_path, capsys):
    lay_classes(tmp_path, "images/{v}/f_{n}.jpg", "masks/{v}/f_{n}_class{c}.png")
    for path in (tmp_path / "masks").rglob("*.png"):
        path.rename(path.with_name(path.name.replace("irrigator", "1").replace("bulldog", "2")))
    assert init(tmp_path) == 2 and "add --id 1=NAME" in capsys.readouterr().err
    assert init(tmp_path, "--id", "1=irrigator", "--id", "2=bulldog clamp", "--id", "255=x") == 0
    assert "note: --id 255 is not used" in capsys.readouterr().out
    assert load_site(tmp_path).classes == CLASSES


def test_a_frame_may_lack_a_class_and_a_class_may_not_lack_a_name(tmp_path, capsys):
    lay_classes(tmp_path, "images/{v}/f_{n}.jpg", "masks/{v}/f_{n}_{c}.png")
    (tmp_path / "masks/op_1/f_1_bulldog.png").unlink()
    assert init(tmp_path) == 0, capsys.readouterr()
    site = load_site(tmp_path)
    expected = canonical(1) * (canonical(1) == 2)
    np.testing.assert_array_equal(read_sample(samples(site, "train")[1]).targets["label"], expected)
    write(tmp_path / "masks/op_1/f_1_thread.png", (canonical(1) == 1).astype(np.uint8))
    assert main(["check-data", str(tmp_path)]) == 1
    assert "is a mask of class 'thread', which 'ids' of site.yaml does not name" in capsys.readouterr().out


def test_masks_of_classes_share_no_pixels_and_are_of_no_video_files(tmp_path, capsys):
    film = tmp_path / "film"
    write_video(film / "op.mp4", 2)
    write(film / "masks/op/f_0_shaft.png", values(0))
    assert init(film, "--images", "{video}.mp4", "--masks", "masks/{video}/*_{class}.png") == 2
    assert "extract the labelled frames as images" in capsys.readouterr().err
    lay_classes(tmp_path / "shared", "images/{v}/f_{n}.jpg", "masks/{v}/f_{n}_{c}.png")
    write(tmp_path / "shared/masks/op_1/f_1_bulldog.png", np.full((H, W), 255, np.uint8))
    assert init(tmp_path / "shared") == 2
    assert "shares 48 pixels with the masks of other classes of the same frame" in capsys.readouterr().err


def test_smoothed_masks_of_classes_need_a_threshold(tmp_path, capsys):
    lay_classes(tmp_path, "images/{v}/f_{n}.jpg", "masks/{v}/f_{n}_{c}.png", soft=True)
    assert init(tmp_path) == 2 and "--threshold 0.5, or" in capsys.readouterr().err
    assert init(tmp_path, "--threshold", "0.5", "--id", "bulldog=bulldog clamp") == 0, capsys.readouterr()
    label = read_sample(samples(load_site(tmp_path), "train")[0]).targets["label"]
    assert (label != canonical(0)).mean() < 0.02 and set(np.unique(label)) == {0, 1, 2}


def lay_film(root: Path, numbers: Iterable[int], frames: int = 100) -> None:
    for video in ("op_1", "op_2", "op_3"):
        write_video(root / f"{video}.mp4", frames, drawn=photograph)
        for number in numbers:
            write(root / f"masks/{video}/f_{number:06d}.png", values(number % 8))


@pytest.mark.parametrize(("numbers", "places", "note", "options"), [
    ((1, 6, 11, 16), (0, 5, 10, 15), "count a video's frames from 1; if from 0: --first-frame 0", ()),
    ((1, 2, 3, 4), (12, 37, 62, 87), "filter fps=1 takes, from 1", ()),  # as FFmpeg's filter takes them
    ((0, 1, 2, 3), (0, 25, 50, 75), "each 25th frame, from 0", ()),
    ((25, 50, 75), (25, 50, 75), "count a video's frames from 0; if from 1: --first-frame 1", ()),
    ((0, 7, 9), (0, 7, 9), "", ()), ((7, 100), (6, 99), "", ()),
    ((1, 2, 3, 4), (0, 1, 2, 3), "", ("--mask-numbers", "frames", "--first-frame", "1")),
])  # fmt: skip
def test_the_numbering_of_masks_is_printed_unless_it_is_certain(numbers, places, note, options, tmp_path, capsys):
    lay_film(tmp_path, numbers)
    assert init(tmp_path, *NAMED, *options) == 0, capsys.readouterr()
    output = capsys.readouterr().out
    assert note in output and ("note:" in output) == bool(note)
    assert [int(sample.images[-1].name) for sample in samples(load_site(tmp_path), "train")] == list(places)


def test_masks_beyond_the_end_of_a_video_are_all_named(tmp_path, capsys):
    lay_film(tmp_path, (1, 2, 3, 4, 9, 10))
    assert init(tmp_path, *NAMED, "--mask-numbers", "fps=1", "--first-frame", "1", "--allow-left-out") == 1
    out = capsys.readouterr().out
    assert "left out: 6 masks (the video has no frame of its number)" in out
    assert "there are masks of others: f_000009.png, f_000010.png" in out


@pytest.mark.parametrize("coloured", [False, True])
def test_smoothed_edges_are_named_and_a_threshold_reads_them(coloured, tmp_path, capsys):
    table = np.array([[0, 0, 0], [0, 64, 255], [255, 128, 0]] if coloured else [0, 200, 100], np.uint8)

    def soft(index: int) -> np.ndarray:
        return cv2.resize(table[canonical(index)], (4 * W, 4 * H), interpolation=cv2.INTER_LINEAR)

    lay(tmp_path, "{v}/img/{n}.jpg", "{v}/gt/{n}.png", drawn=soft)
    for path in tmp_path.rglob("*.jpg"):
        write(path, cv2.resize(photograph(0), (4 * W, 4 * H)))
    ids = ("--id", "#0040ff=a", "--id", "#ff8000=b") if coloured else ("--id", "200=a", "--id", "100=b")
    assert init(tmp_path, *ids) == 2
    assert "the edges of the masks are smoothed (anti-aliased)" in (error := capsys.readouterr().err)
    assert "add --threshold 0.5" in error
    assert init(tmp_path, *ids, "--threshold", "0.5") == 0, capsys.readouterr()
    for index, sample in enumerate(samples(load_site(tmp_path), "train")[:3]):
        expected = np.kron(canonical(index), np.ones((4, 4), np.uint8))
        assert (read_sample(sample).targets["label"] != expected).mean() < 0.002  # corners are rounded


def test_hidden_files_and_files_of_systems_are_no_data(tmp_path, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    write(tmp_path / "op_1/gt/.hidden.png", values(0))
    write(tmp_path / ".git/img/1.png", photograph(0))
    system = (".DS_Store", "op_1/img/Thumbs.db", "op_1/img/._0.png", "__MACOSX/op_1/img/0.png", "@eaDir/t.jpg")
    for name in (*system, "op_1/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    assert init(tmp_path, *NAMED) == 0, capsys.readouterr()
    assert "left out: " not in capsys.readouterr().out
    assert load_site(tmp_path).source.reader.videos(tmp_path) == ["op_1", "op_2", "op_3"]


@pytest.mark.parametrize(("extra", "left_out"), [
    ("logo/1.png", "1 image in logo/ (not where 'images' and 'masks' say)"),
    ("op_1/right/1.png", "1 image in op_1/right/"),
    ("scan/a.dcm", "1 unread file in scan/ (a format that is not read)"),
    ("op_4/img/1.png", "1 video (without masks): op_4"), ("a/b/c/d/e/f/g/1.png", "1 image in a/"),
    ("a.mp4", "1 video file (not where 'images' and 'masks' say): a.mp4"),
])  # fmt: skip
def test_a_folder_that_is_left_out_needs_consent(extra, left_out, tmp_path, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    if extra.endswith("png"):
        write(tmp_path / extra, photograph(0))
    else:
        (tmp_path / extra).parent.mkdir(exist_ok=True)
        (tmp_path / extra).write_bytes(b"x")
    assert init(tmp_path, *NAMED) == 2
    output = capsys.readouterr()
    assert left_out in output.err and "add --allow-left-out" in output.err and output.err.count("\n") == 1
    assert left_out in output.out and not (tmp_path / "site.yaml").exists()
    assert init(tmp_path, *NAMED, "--allow-left-out") == 0


def test_few_files_may_be_left_out_without_consent(tmp_path, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png", frames=7)
    write(tmp_path / "op_1/cover.png", photograph(0))
    assert init(tmp_path, *NAMED) == 0
    assert "left out: 1 image (not where 'images' and 'masks' say): op_1/cover.png" in capsys.readouterr().out


def test_at_a_terminal_what_is_left_out_is_asked(tmp_path, monkeypatch, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    write(tmp_path / "logo/1.png", photograph(0))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, code in (("no", 2), ("yes", 0)):
        answers = iter(["yes", answer, "1", "", "style"])
        monkeypatch.setattr("builtins.input", lambda question, answers=answers: next(answers))
        assert init(tmp_path, *NAMED) == code
    assert "nothing was written" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["op_1/img/1.png", "op_2/gt/0.png"])
def test_pointers_of_git_lfs_are_named(name, tmp_path, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert init(tmp_path, *NAMED) == 2
    sentence = f"{name}: is a Git LFS pointer, not the file itself; fetch the files with `git lfs pull`"
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("command", [["site", "init"], ["train"]])
def test_a_read_only_folder_is_refused_before_anything_is_asked(command, tmp_path, monkeypatch, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert main([*command, str(tmp_path), "--yes", *NAMED]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}: cannot be written" in error and "--out FILE" in error and "surgfl train FILE" in error


def test_a_check_counts_what_a_site_uses(tmp_path, capsys):
    lay(tmp_path, "{v}/img/{n}.png", "{v}/gt/{n}.png")
    assert init(tmp_path, *NAMED, "--train", "op_1", "--validation", "op_2") == 0
    capsys.readouterr()
    assert main(["check-data", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "  videos         3        2         1\n" in out and "  masks          9        6         3\n" in out
    assert "left out: 3 images in op_3/ (its video is in no split)" in out
