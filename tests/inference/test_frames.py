"""Frames from folders and videos in order; errors name unreadable files."""

from fractions import Fraction

import cv2
import numpy as np
import pytest
import torch

from shared_components.core.evaluation import network_input
from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream, videos_in
from tests.inference.conftest import grey, write_image, write_video


def stream_of(source, **options):
    return FrameStream(source, height=32, width=64, **options)


def names_of(source, **options):
    return [shot.path for shot in stream_of(source, **options).shots()]


@pytest.mark.parametrize("size", [(40, 50), (32, 64)])
def test_items_hold_the_networks_input_and_the_frame_in_rgb(tmp_path, size):
    cv2.imwrite(str(tmp_path / "a.png"), np.full((4, 4, 3), (10, 20, 30), np.uint8))  # blue, green, red
    (shot,) = stream_of(tmp_path / "a.png").shots()
    assert shot.image[0, 0].tolist() == [30, 20, 10]
    write_image(tmp_path / "a.png", 51, size=size)
    (item,) = stream_of(tmp_path)
    assert item["image"].shape == (1, 3, 32, 64) and torch.allclose(item["image"], torch.tensor(0.2))
    assert item["shot"].image.shape == (*size, 3)


def test_a_clips_input_keeps_the_order_of_its_frames():
    images = np.stack([np.full((10, 20, 3), shade, np.uint8) for shade in (0, 255)])
    result = network_input(images, 32, 64)
    assert result.shape == (1, 2, 3, 32, 64) and (result[0, 0] == 0).all() and (result[0, 1] == 1).all()


def test_every_sub_folder_is_a_sequence_in_natural_order(tmp_path):
    for name in ("b.png", "day10/2.png", "day9/10.jpg", "day9/9.jpg", "day9/left/1.png", ".cache/x.png",
                 "day9/._9.jpg", "day9/readme.txt"):  # fmt: skip
        write_image(tmp_path / name) if not name.endswith("txt") else (tmp_path / name).write_text("x")
    assert names_of(tmp_path) == ["b", "day9/9", "day9/10", "day9/left/1", "day10/2"]
    assert [shot.sequence for shot in stream_of(tmp_path).shots()] == ["", "day9", "day9", "day9/left", "day10"]
    assert stream_of(tmp_path).total == 5 and not stream_of(tmp_path).is_video


def test_every_nth_is_counted_in_each_sequence(tmp_path):
    for folder in ("a", "b"):
        for number in range(5):
            write_image(tmp_path / folder / f"{number}.png")
    stream = stream_of(tmp_path, every=3, video_rate=10)
    assert [(shot.path, shot.seconds) for shot in stream.shots()] == [
        ("a/0", 0), ("a/3", Fraction(3, 10)), ("b/0", 0), ("b/3", Fraction(3, 10)),
    ]  # fmt: skip
    assert stream.total == 4 and stream.rate == Fraction(10, 3)


@pytest.mark.parametrize(
    ("given", "rate"), [(25, 25), ("29.97", Fraction(2997, 100)), ("30000/1001", Fraction(30000, 1001)), (None, None)]
)
def test_images_have_the_rate_that_is_given_and_no_times_without_one(tmp_path, given, rate):
    write_image(tmp_path / "a.png")
    stream = stream_of(tmp_path, video_rate=given)
    assert stream.rate == rate and [shot.seconds for shot in stream.shots()] == [None if given is None else 0]


def test_a_video_is_streamed_with_its_rate_and_times(video):
    stream = stream_of(video, every=2)
    shots = stream.shots()
    assert [(shot.name, shot.seconds) for shot in (next(shots), next(shots))] == [
        ("frame_000000", 0), ("frame_000002", Fraction(2, 25)),
    ]  # fmt: skip
    assert stream.rate == Fraction(25, 2) and stream.total == len(list(stream)) == 20 and stream.is_video
    video.rename(video.with_name("recording"))  # without its usual ending
    assert len(names_of(video.with_name("recording"))) == 40


def test_a_folder_of_images_and_videos_and_a_video_called_as_a_folder_beside_it_are_refused(tmp_path):
    write_image(tmp_path / "mixed" / "stills" / "thumb.png")
    write_video(tmp_path / "mixed" / "a.mp4", grey(2))
    with pytest.raises(InferenceError, match=r"contains 1 image, such as .*thumb\.png, and 1 video, such as .*a\.mp4;"):
        videos_in(tmp_path / "mixed")
    (tmp_path / "films" / "day").mkdir(parents=True)
    for name in ("films/day.mp4", "films/day/left.mp4", "films/days.mp4"):
        write_video(tmp_path / name, grey(2))
    with pytest.raises(InferenceError, match=r"results of .*day/left\.mp4 would lie among the results of .*day\.mp4"):
        videos_in(tmp_path / "films")
    (tmp_path / "films" / "day.mp4").rename(tmp_path / "films" / "night.mp4")
    assert list(videos_in(tmp_path / "films")) == ["day/left", "days", "night"]


def draw(path, index=0, *, mask=False):
    """Write a photograph, or a mask with two values."""
    image = np.random.default_rng(index).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), (image[..., 0] > 128).astype(np.uint8) * 255 if mask else image)


@pytest.mark.parametrize(
    ("frame", "mask", "message"),
    [
        ("images/f_{}.jpg", "masks/f_{}.png", "4 masks in masks/ (masks are not segmented)"),
        ("f_{}.png", "f_{}_mask.png", "4 masks (masks are not segmented): f_0_mask.png"),
        ("f_{}.jpg", "f_{}.png", "4 masks (masks are not segmented): f_0.png"),
        ("op/img/{}.png", "op/SegmentationClass/{}.png", "4 masks in op/SegmentationClass/"),
        ("images/op/f_{}.jpg", "Labels/op/f_{}.jpg", "4 masks in Labels/"),  # JPEG masks, by their folder's name
        ("f_{}_jpg.rf.00aa11bb22cc3{}.jpg", "f_{}_jpg.rf.00aa11bb22cc3{}_mask.png", "4 masks (masks are not segmented"),
    ],
)
def test_masks_beside_frames_are_left_out_by_name(frame, mask, message, tmp_path):
    for index in range(4):
        draw(tmp_path / frame.format(index, index), index)
        draw(tmp_path / mask.format(index, index), index, mask=True)
    stream = stream_of(tmp_path)
    assert [(tmp_path / frame.format(n, n)).stem for n in range(4)] == [shot.name for shot in stream.shots()]
    assert stream.total == 4 and stream.inventory.used == {"images": 4}
    (one,) = stream.inventory.left_out
    assert str(one).startswith(message)


def test_masks_alone_and_dark_frames_are_segmented(tmp_path):
    for index in range(3):
        draw(tmp_path / f"only/f_{index}.png", index, mask=True)
        draw(tmp_path / f"both/a/f_{index}.png", index)
        write_image(tmp_path / f"both/b/f_{index}.png", 0)
    assert stream_of(tmp_path / "only").total == 3 and stream_of(tmp_path / "both").total == 6
    assert not stream_of(tmp_path / "only").inventory.left_out + stream_of(tmp_path / "both").inventory.left_out


def test_masks_of_videos_are_no_images_beside_them(tmp_path):
    write_video(tmp_path / "op.mp4", grey(2))
    draw(tmp_path / "masks/op/0.png", mask=True)
    assert list(videos_in(tmp_path)) == ["op"]


def test_pointers_of_git_lfs_and_unread_files_are_named(tmp_path):
    draw(tmp_path / "a.png")
    (tmp_path / "b.dcm").write_bytes(b"x")
    (left_out,) = stream_of(tmp_path).inventory.left_out
    assert str(left_out) == "1 unread file (a format that is not read): b.dcm"
    (tmp_path / "c.png").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(InferenceError, match=r"c\.png: is a Git LFS pointer"):
        stream_of(tmp_path)
    (tmp_path / "c.mp4").write_text((tmp_path / "c.png").read_text())
    with pytest.raises(InferenceError, match=r"c\.mp4.*is a Git LFS pointer"):
        stream_of(tmp_path / "c.mp4")


def videos_only(path):
    path.mkdir()
    for name in ("b.mp4", "a.mov"):
        (path / name).write_bytes(b"")


def two_endings(path):
    for name in ("day/a.png", "day/a.jpg"):
        write_image(path / name)


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (lambda path: path.mkdir(), {}, "input folder {path} and its sub-folders have no images (.png, "),
        (videos_only, {}, "input folder {path} has videos but no images; give a video, such as {path}/a.mov"),
        (two_endings, {}, "input folder {path}/day has images that differ only in their extension"),
        (lambda path: path.write_bytes(b"no video"), {}, "video {path} cannot be read"),
        *((write_image, {"video_rate": rate}, f"the video rate is {rate!r}; give frames per second")
          for rate in ("fast", "1/0", -1)),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_before_anything_is_written(tmp_path, make, options, sentence):
    path = tmp_path / ("a.png" if make is write_image else "surgery")
    make(path)
    with pytest.raises(InferenceError) as error:
        stream_of(path, **options)
    assert str(error.value).startswith(sentence.format(path=path)) and "\n" not in str(error.value)


def test_a_rate_of_a_video_and_a_missing_input_are_errors_that_name_the_option(video):
    with pytest.raises(InferenceError, match="has its own frame rate; remove --video-rate"):
        stream_of(video, video_rate=25)
    with pytest.raises(InferenceError, match="add --input"):
        stream_of(None)


@pytest.mark.parametrize("keep", [0, 5, 60])
def test_a_damaged_image_is_named(tmp_path, keep):
    write_image(tmp_path / "whole.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "whole.png").read_bytes()[:keep])
    with pytest.raises(InferenceError, match=r"broken\.png cannot be read .*; copy the file again, or move it out"):
        list(stream_of(tmp_path))
