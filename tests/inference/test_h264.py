"""What is written is H.264 as browsers play it: decoded by OpenCV it is what went in."""

from fractions import Fraction

import av
import cv2
import numpy as np
import pytest

from shared_components.data.synthetic.scene import render_video
from shared_components.inference import InferenceError
from shared_components.inference.video import H264Video, frames_of, look_at
from tests.inference.conftest import grey


def write(path, frames, rate=Fraction(25), **options):
    video = H264Video(path, rate=rate, **options)
    for number, image in enumerate(frames):
        video.add(image, number / rate)
    video.close()
    return path


@pytest.fixture(scope="module")
def scene():
    return [frame.image for frame in render_video("rose", 1, frames=12, height=64, width=96, rate=30)]


def test_opencv_reads_the_frames_that_were_written(scene, tmp_path):
    capture = cv2.VideoCapture(str(write(tmp_path / "a.mp4", scene)))
    assert capture.get(cv2.CAP_PROP_FPS) == 25 and capture.get(cv2.CAP_PROP_FRAME_COUNT) == 12
    for image in scene:
        read = capture.read()[1][..., ::-1].astype(int)
        assert read.shape == image.shape and np.abs(read - image).mean() < 8
    assert not capture.read()[0]


@pytest.mark.parametrize("colour", [(200, 60, 50), (60, 180, 80), (40, 80, 220), (0, 0, 0), (255, 255, 255)])
def test_colours_stay_what_they_are(tmp_path, colour):
    path = write(tmp_path / "a.mp4", [np.full((64, 96, 3), colour, np.uint8)] * 3)
    read = cv2.VideoCapture(str(path)).read()[1][..., ::-1]
    assert np.abs(read.astype(int) - colour).max() <= 4


def test_the_container_says_what_browsers_want(scene, tmp_path):
    path = write(tmp_path / "a.mp4", scene)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert (stream.codec_context.colorspace, stream.codec_context.color_range) == (1, 1)  # BT.709, limited
    data = path.read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat"), "a browser would load all of it before the first frame"


@pytest.mark.parametrize("rate", [Fraction(24000, 1001), Fraction(30000, 1001), Fraction(60), Fraction(1, 2)])
def test_a_rate_that_is_a_fraction_is_kept(tmp_path, rate):
    found = look_at(write(tmp_path / "a.mp4", grey(30), rate))
    assert found.rate == rate and found.frames == 30


def test_frames_at_uneven_times_keep_them_and_jitter_is_smoothed(tmp_path):
    video = H264Video(tmp_path / "a.mp4", rate=Fraction(10))
    times = [Fraction(text) for text in ("0", "0.101", "0.25", "1", "1.099")]
    for image, time in zip(grey(5), times, strict=True):
        video.add(image, time)
    video.close()
    found = [float(seconds) for *_, seconds in frames_of(look_at(tmp_path / "a.mp4"))]
    assert found == [0, 0.1, 0.25, 1, 1.1]


@pytest.mark.parametrize("size", [(47, 63), (47, 64), (48, 63), (1, 1)])
def test_odd_sides_are_made_even_by_repeating_the_edge(tmp_path, size):
    image = np.zeros((*size, 3), np.uint8)
    image[-1:], image[:, -1:] = 200, 200
    path = write(tmp_path / "a.mp4", [image] * 2)
    read = cv2.VideoCapture(str(path)).read()[1]
    H, W = size
    assert read.shape == (H + H % 2, W + W % 2, 3)
    assert read[-1, -1].min() > 180 and read[size[0] // 2, -1].min() > 180


def test_the_pixels_shape_is_kept(tmp_path):
    assert look_at(write(tmp_path / "a.mp4", grey(2), aspect=Fraction(16, 15))).aspect == Fraction(16, 15)


def test_a_frame_of_another_size_is_refused(tmp_path):
    video = H264Video(tmp_path / "a.mp4", rate=Fraction(25))
    video.add(np.zeros((48, 64, 3), np.uint8), Fraction(0))
    with pytest.raises(InferenceError, match=r"a\.mp4: a picture is 96x64 and those before are 64x48"):
        video.add(np.zeros((64, 96, 3), np.uint8), Fraction(1, 25))
    video.abandon()


def test_what_cannot_be_coded_is_refused_in_one_sentence(tmp_path):
    video = H264Video(tmp_path / "a.mp4", rate=Fraction(25))
    with pytest.raises(InferenceError, match=r"a\.mp4: a video of 20000x2 could not be written"):
        video.add(np.zeros((2, 20000, 3), np.uint8), Fraction(0))
    video.abandon()


def test_without_an_encoder_it_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setattr("shared_components.inference.video.CODEC", "nothing")
    with pytest.raises(InferenceError, match="install its own wheel"):
        H264Video(tmp_path / "a.mp4", rate=Fraction(25))
