"""Frames from folders and videos, one at a time; predictions written; what cannot be read is named."""

import cv2
import numpy as np
import pytest
import torch

from shared_components.evaluation import network_input
from shared_components.inference import FrameStream, InferenceError, PredictionFolder
from shared_components.task import make_task


def write_image(path, shade=100, size=(40, 50)):
    cv2.imwrite(str(path), np.full((*size, 3), shade, np.uint8))


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "surgery.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for index in range(4):
        writer.write(np.full((48, 64, 3), 60 * index, np.uint8))
    writer.release()
    return path


def test_a_folder_is_read_in_natural_order(tmp_path):
    for number in (10, 9, 1):
        write_image(tmp_path / f"frame{number}.png", number)
    (tmp_path / "notes.txt").write_text("not a frame")
    shots = list(FrameStream(tmp_path, height=32, width=64).shots())
    assert [(shot.name, int(shot.image[0, 0, 0])) for shot in shots] == [
        ("frame1", 1),
        ("frame9", 9),
        ("frame10", 10),
    ]


def test_colours_are_rgb(tmp_path):
    blue_green_red = np.full((4, 4, 3), (10, 20, 30), np.uint8)
    cv2.imwrite(str(tmp_path / "a.png"), blue_green_red)
    (shot,) = FrameStream(tmp_path / "a.png", height=32, width=32).shots()
    assert shot.image[0, 0].tolist() == [30, 20, 10]


def test_items_hold_the_networks_input_and_the_frame(tmp_path):
    write_image(tmp_path / "a.png", 51)
    (item,) = FrameStream(tmp_path, height=32, width=64)
    assert item["image"].shape == (1, 3, 32, 64) and torch.allclose(item["image"], torch.tensor(0.2))
    assert item["shot"].image.shape == (40, 50, 3)


def test_frames_that_have_the_networks_size_already_are_taken_as_they_are(tmp_path):
    write_image(tmp_path / "a.png", 51, size=(32, 64))
    (item,) = FrameStream(tmp_path, height=32, width=64)
    assert torch.allclose(item["image"], torch.tensor(0.2))


def test_a_video_is_streamed_with_its_rate(video):
    stream = FrameStream(video, height=32, width=32)
    shots = stream.shots()
    assert next(shots).name == "frame_000000" and next(shots).name == "frame_000001"
    assert stream.rate == 10
    assert len(list(stream)) == 4


def test_a_video_that_ends_early_is_read_to_its_end_and_said_so(tmp_path, caplog):
    path = tmp_path / "surgery.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    noise = np.random.default_rng(0)
    for _ in range(30):
        writer.write(noise.integers(0, 255, (48, 64, 3), dtype=np.uint8))
    writer.release()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    count = len(list(FrameStream(path, height=32, width=32)))
    assert 5 < count < 25
    assert f"surgery.avi ends after {count} of the 30 frames that it announces" in caplog.text


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "has no images"),
        (lambda path: path.write_bytes(b"this is no video"), "cannot be read; check it with another player"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named_before_anything_is_written(tmp_path, make, sentence):
    path = tmp_path / "surgery.mp4"
    make(path)
    with pytest.raises(InferenceError, match=sentence) as error:
        FrameStream(path, height=32, width=32)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_no_input_is_an_error_that_names_the_option():
    with pytest.raises(InferenceError, match="add --input"):
        FrameStream(None, height=32, width=32)


def test_a_damaged_image_is_named(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    with pytest.raises(InferenceError, match=r"broken\.png cannot be read"):
        list(FrameStream(tmp_path, height=32, width=32))


def test_images_whose_masks_would_overwrite_each_other_are_refused(tmp_path):
    write_image(tmp_path / "a.png")
    write_image(tmp_path / "a.jpg")
    with pytest.raises(InferenceError, match="differ in their ending alone"):
        FrameStream(tmp_path, height=32, width=32)


def test_the_networks_input_lies_between_0_and_1():
    image = np.full((10, 20, 3), 255, np.uint8)
    assert torch.equal(network_input(image[None], 32, 64), torch.ones(1, 3, 32, 64))


def test_a_clips_input_keeps_the_order_of_its_frames():
    images = np.stack([np.full((10, 20, 3), shade, np.uint8) for shade in (0, 255)])
    found = network_input(images, 32, 64)
    assert found.shape == (1, 2, 3, 32, 64) and (found[0, 0] == 0).all() and (found[0, 1] == 1).all()


SEGMENTATION = make_task("segmentation", classes=("background", "shaft", "wrist", "clasper"))


def test_enlarging_is_the_argmax_of_logits_enlarged_by_nearest_neighbours():
    torch.manual_seed(0)
    logits = torch.randn(1, 4, 8, 10)
    large = torch.nn.functional.interpolate(logits, size=(16, 20), mode="nearest")
    assert np.array_equal(SEGMENTATION.answers(logits, {}, [(16, 20)])[0], large.argmax(1)[0].numpy())


def test_predictions_are_ids_and_a_picture_of_the_frames_size(tmp_path):
    folder = PredictionFolder(tmp_path / "out")
    mask = np.zeros((40, 50), np.uint8)
    mask[10:20] = 2
    folder.add("a", SEGMENTATION.files(mask, np.full((40, 50, 3), 90, np.uint8)))
    folder.close()
    assert np.array_equal(cv2.imread(str(tmp_path / "out/masks/a.png"), cv2.IMREAD_UNCHANGED), mask)
    drawn = cv2.imread(str(tmp_path / "out/overlays/a.png"))
    assert drawn.shape == (40, 50, 3) and (drawn[30] == 90).all() and (drawn[15] != 90).any()
