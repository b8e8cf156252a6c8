"""Videos read and written: frames as they are decoded, and H.264 as browsers play it."""

from fractions import Fraction
from itertools import pairwise

import av
import cv2
import numpy as np
import pytest

from shared_components.inference import InferenceError
from shared_components.inference.video import H264Video, frames_of, look_at
from shared_components.scenes.scene import render_video
from tests.inference.conftest import grey, noise, write_video


def read_by_opencv(path):
    capture, result = cv2.VideoCapture(str(path)), []
    while (read := capture.read())[0]:
        result.append(read[1][..., ::-1])
    return result


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.avi", "case:1 %03d.mp4"])
def test_frames_are_those_that_opencv_reads(tmp_path, name):
    path = write_video(tmp_path / name, noise(8))
    result = [image for _, image, _ in frames_of(look_at(path))]
    assert np.array_equal(result, read_by_opencv(path))


def test_frames_at_uneven_times_keep_them(tmp_path, caplog):
    times = [0.0, 0.1, 0.35, 1.0]
    path = write_video(tmp_path / "a.mkv", grey(4), rate=10, times=[5 + time for time in times])
    assert [float(seconds) for *_, seconds in frames_of(look_at(path))] == times
    assert caplog.text == ""


@pytest.mark.parametrize("rotation", [90, 180, -90])
def test_a_turned_video_is_upright_as_opencv_shows_it(tmp_path, rotation):
    image = np.zeros((48, 64, 3), np.uint8)
    image[:24, :32], image[:24, 32:], image[24:, :32] = (250, 0, 0), (0, 250, 0), (0, 0, 250)
    path = write_video(tmp_path / "a.mp4", [image] * 3, rotation=rotation)
    result = [image for _, image, _ in frames_of(look_at(path))]
    assert result[0].shape == ((48, 64, 3) if rotation == 180 else (64, 48, 3))
    assert np.array_equal(result, read_by_opencv(path))


@pytest.mark.parametrize(("rotation", "shown"), [(0, Fraction(16, 15)), (90, Fraction(15, 16))])
def test_the_pixels_shape_is_known_and_turns_with_the_picture(tmp_path, rotation, shown):
    path = write_video(tmp_path / "a.mp4", grey(2), rotation=rotation, aspect=Fraction(16, 15))
    assert look_at(path).aspect == shown


def half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("a.mp4", {"movflags": "faststart"}, "a.mp4 ends after {count} of the 30 frames in its header"),
        ("a.avi", {"codec": "mjpeg"}, "a.avi ends after {count} of the 30 frames in its header"),
        ("a.mkv", {}, "a.mkv ends after {seconds:.1f} of the 1.2 seconds in its header"),
    ],
)
def test_a_video_cut_in_the_middle_is_read_until_there_and_said_so(tmp_path, caplog, name, options, sentence):
    path = half(write_video(tmp_path / name, noise(30), **options))
    result = list(frames_of(look_at(path)))
    assert 2 < len(result) < 28 and [number for number, *_ in result] == list(range(len(result)))
    assert sentence.format(count=len(result), seconds=len(result) / 25) in caplog.text


def test_damaged_frames_are_left_out_and_counted(tmp_path, caplog):
    path = write_video(tmp_path / "a.mp4", noise(30), movflags="faststart")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 3000] = bytes(3000)
    path.write_bytes(data)
    result = list(frames_of(look_at(path)))
    lost = 30 - len(result)
    assert 1 <= lost <= 3 and f"{lost} damaged frames were skipped" in caplog.text
    assert "in its header" not in caplog.text


def without_frames(path):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        sound.sample_rate = 44100
        container.mux(stream.encode(sound))
        container.mux(stream.encode())


def of_an_unknown_codec(path):
    write_video(path, grey(3))
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzzz"))


def without_anything_to_decode(path):
    write_video(path, noise(3), movflags="faststart")
    data = path.read_bytes()
    start = data.index(b"mdat") + 4
    path.write_bytes(data[:start] + bytes(len(data) - start))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: path.write_bytes(b"this is no video"), "cannot be read (it is no video, damaged, cut off"),
        (lambda path: path.write_bytes(b""), "cannot be read (it is no video"),
        (lambda path: half(write_video(path, noise(20))), "cannot be read (it is no video, damaged, cut off"),
        (without_frames, "has no frames; check it with another player"),
        (of_an_unknown_codec, "has an unsupported codec; convert it to H.264 MP4"),
        (without_anything_to_decode, "has no frames that can be decoded; check it"),
    ],
)
def test_what_is_no_video_is_refused_in_one_sentence(tmp_path, make, sentence):
    path = tmp_path / "surgery.mp4"
    make(path)
    with pytest.raises(InferenceError) as error:
        look_at(path)
    assert str(error.value).startswith(f"video {path} {sentence}") and "\n" not in str(error.value)


def joined(path, *sizes):
    """Concatenate streams of several sizes, as from a recorder whose settings changed."""
    parts = [write_video(path.with_name(f"{size}.ts"), grey(10, *size)).read_bytes() for size in sizes]
    path.write_bytes(b"".join(parts))
    return look_at(path)


def test_recordings_that_are_joined_have_a_time_that_goes_on_and_one_size(tmp_path):
    """Each begins with the same clock."""
    times = [seconds for *_, seconds in frames_of(joined(tmp_path / "a.ts", (48, 64), (48, 64)))]
    assert len(times) == 20 and {after - before for before, after in pairwise(times)} == {Fraction(1, 25)}
    with pytest.raises(InferenceError, match=r"changes its size from 64x48 to 96x64 at frame 10 \(0\.40 s\)"):
        list(frames_of(joined(tmp_path / "b.ts", (48, 64), (64, 96))))


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
    result = look_at(write(tmp_path / "a.mp4", grey(30), rate))
    assert (result.rate, result.frames, result.aspect) == (rate, 30, 1)


def test_frames_at_uneven_times_keep_them_and_jitter_is_smoothed(tmp_path):
    video = H264Video(tmp_path / "a.mp4", rate=Fraction(10))
    times = [Fraction(text) for text in ("0", "0.101", "0.25", "1", "1.099")]
    for image, time in zip(grey(5), times, strict=True):
        video.add(image, time)
    video.close()
    result = [float(seconds) for *_, seconds in frames_of(look_at(tmp_path / "a.mp4"))]
    assert result == [0, 0.1, 0.25, 1, 1.1]


@pytest.mark.parametrize("size", [(47, 63), (47, 64), (48, 63), (1, 1)])
def test_odd_sides_are_made_even_by_repeating_the_edge(tmp_path, size):
    image = np.zeros((*size, 3), np.uint8)
    image[-1:], image[:, -1:] = 200, 200
    path = write(tmp_path / "a.mp4", [image] * 2)
    read = cv2.VideoCapture(str(path)).read()[1]
    H, W = size
    assert read.shape == (H + H % 2, W + W % 2, 3)
    assert read[-1, -1].min() > 180 and read[size[0] // 2, -1].min() > 180


def test_what_cannot_be_coded_and_a_missing_encoder_are_refused_in_one_sentence(tmp_path, monkeypatch):
    video = H264Video(tmp_path / "a.mp4", rate=Fraction(25))
    with pytest.raises(InferenceError, match=r"a\.mp4: a video of 20000x2 could not be written"):
        video.add(np.zeros((2, 20000, 3), np.uint8), Fraction(0))
    video.abandon()
    monkeypatch.setattr("shared_components.inference.video.CODEC", "nothing")
    with pytest.raises(InferenceError, match="pip install av"):
        H264Video(tmp_path / "a.mp4", rate=Fraction(25))
