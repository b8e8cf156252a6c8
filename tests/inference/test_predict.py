"""Predictions of frames one by one, and of clips by a network that remembers earlier frames."""

import threading
import time
from fractions import Fraction
from types import SimpleNamespace

import psutil
import pytest
import torch

from evidence.benchmarks.following import RATE, SIDE, segmented
from shared_components.common.progress import Step, listening
from shared_components.core.task import make_task
from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream
from shared_components.inference.predict import AHEAD, FrameCount, Predictor, Streaming, predict_all, shown_frames
from shared_components.inference.results import PredictionFolder
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from shared_components.networks.sam2_architectures import ARCHITECTURES
from shared_components.networks.sam2_video import Sam2Clips
from tests.inference.conftest import PARTS, SEGMENTATION, Bright, grey, noise, shot, write_image, write_video
from tests.networks.conftest import TOY


def test_a_prediction_has_the_frames_own_size_and_a_network_in_training_predicts_as_in_evaluation():
    image = torch.zeros(1, 3, 32, 64)
    image[..., :16, :] = 1
    outputs, mask = Predictor(Bright(), SEGMENTATION)(image, (48, 100))
    assert outputs.shape == (1, 4, 32, 64) and mask.shape == (48, 100)
    assert (mask[:24] == 1).all() and (mask[24:] == 0).all()
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4)).train()
    before = network[1].running_mean.clone()
    Predictor(network, SEGMENTATION)(torch.rand(1, 3, 8, 8), (8, 8))
    assert torch.equal(network[1].running_mean, before) and not network.training


def test_what_is_left_to_chance_is_the_same_for_every_frame():
    predictor = Predictor(torch.nn.Conv2d(3, 3, 1), make_task("reconstruction"))
    answers = [predictor(torch.rand(1, 3, 64, 64), (64, 64))[1] for _ in range(2)]
    assert (answers[0].hidden == answers[1].hidden).all()


def test_bf16_is_used_where_it_is_asked_for():
    network = torch.nn.Conv2d(3, 4, 1)
    image = torch.rand(1, 3, 8, 8)
    assert Predictor(network, SEGMENTATION)(image, (8, 8))[0].dtype == torch.float32
    assert Predictor(network, SEGMENTATION, precision="bf16")(image, (8, 8))[0].dtype == torch.bfloat16
    with pytest.raises(InferenceError, match="precision is 'half'; use one of float32, bf16"):
        Predictor(network, SEGMENTATION, precision="half")


@pytest.mark.parametrize(
    ("total", "step"),
    [
        (10_000, Step("frame", 3, 10_000, "0.5 frames/s  about 5.6 h left")),
        (3, Step("frame", 3, 3, "0.5 frames/s  about 0 s left")),
        (2, Step("frame", 3, None, "0.5 frames/s")),  # a container may announce too few
        (None, Step("frame", 3, None, "0.5 frames/s")),
    ],
)
def test_frames_are_reported_with_speed_and_time_left(monkeypatch, total, step):
    clock, steps = [100.0], []
    monkeypatch.setattr("shared_components.inference.predict.time.monotonic", lambda: clock[0])
    frames = FrameCount(total)
    with listening(steps.append):
        for _ in range(3):
            clock[0] += 2.0
            frames.step()
    assert steps[-1] == step and (frames.count, frames.seconds) == (3, 6.0)


class Written:
    """A folder that records predictions, and the number of frames read before each."""

    def __init__(self, read, broken=None):
        self.read, self.broken, self.names, self.ahead = read, broken, [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def add(self, shot, answer):
        if shot.name == self.broken:
            raise InferenceError(f"{shot.name} cannot be written")
        self.ahead.append(len(self.read) - len(self.names))
        self.names.append((shot.name, int(answer[0, 0])))


class Read:
    """A stream of `count` frames, every second one bright, that breaks at its end."""

    total = live = None

    def __init__(self, count):
        self.count, self.names = count, []

    def __iter__(self):
        for number in range(self.count):
            self.names.append(str(number))
            yield {"image": torch.full((1, 3, 4, 4), float(number % 2)), "shot": shot(str(number))}
        raise InferenceError("the end cannot be read")


class Slow(Bright):
    """Takes longer for dark frames than for bright frames."""

    def forward(self, image):
        time.sleep(0.0 if image.mean() else 0.01)
        return super().forward(image)


@pytest.fixture
def three_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("three_threads")
def test_frames_are_written_in_order_with_their_own_masks_and_few_are_read_ahead():
    stream = Read(30)
    folder, predictor = Written(stream.names), Predictor(Slow(), SEGMENTATION)
    with pytest.raises(InferenceError, match="the end cannot be read"):
        predict_all(predictor, stream, folder)
    assert folder.names == [(str(number), number % 2) for number in range(30)]
    assert predictor.at_once == 3 and 1 < max(folder.ahead) <= 3 + AHEAD


@pytest.mark.usefixtures("three_threads")
def test_the_error_of_the_earliest_frame_ends_a_run_and_its_threads():
    before, stream = threading.active_count(), Read(4)
    with pytest.raises(InferenceError, match="2 cannot be written"):
        predict_all(Predictor(Slow(), SEGMENTATION), stream, Written(stream.names, broken="2"))
    assert threading.active_count() == before


@pytest.mark.slow
def test_memory_stays_what_it_is_over_many_frames(tmp_path):
    """The 500 frames after the first hundred are 74 MB of pixels."""
    video = write_video(tmp_path / "a.mp4", grey(600, 192, 256))
    resident, process, network = [], psutil.Process(), Bright()
    network.register_forward_hook(lambda *_: resident.append(process.memory_info().rss))
    stream = FrameStream(video, height=32, width=64)
    folder = PredictionFolder(tmp_path / "out", stream, SEGMENTATION)
    done = predict_all(Predictor(network, SEGMENTATION), stream, folder)
    assert done.count == folder.count == len(resident) == 600
    assert max(resident[100:]) - resident[100] < 12e6


CLIPS = make_task("segmentation", {"frames": 4, "interval": 0.2}, classes=PARTS)
PADDED = make_task("segmentation", {"frames": 4, "interval": 0.2, "padding": "current"}, classes=PARTS)


class Counting(torch.nn.Module):
    """Returns the images of its memory; images are numbers."""

    def begin_stream(self, stride, padding):
        return stride, padding, ()

    def remember(self, image, memory):
        stride, padding, seen = memory
        seen, instead = (*seen, float(image)), {"first": 0, "current": -1}[padding]
        places = [len(seen) - 1 - back * stride for back in (3, 2, 1, 0)]
        return [seen[n if n >= 0 else instead] for n in places], (stride, padding, seen)


def stream(rate, total=9, every=1):
    rate = None if rate is None else Fraction(rate) / every
    return SimpleNamespace(rate=rate, total=total, every=every, source="surgery.mp4")


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    network = PvtFpnClips(out_channels=4).eval()
    for module in (network.temporal, network.selection):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    return network


@pytest.mark.parametrize(
    ("task", "rate", "expected"),
    [
        (CLIPS, 10, {0: [0, 0, 0, 0], 5: [0, 1, 3, 5], 8: [2, 4, 6, 8]}),  # 0.2 s are two frames
        # FedST, Section 4.1.3: the current frame fills the slots of missing history
        (PADDED, 5, {0: [0, 0, 0, 0], 1: [1, 1, 0, 1], 2: [2, 0, 1, 2], 3: [0, 1, 2, 3], 4: [1, 2, 3, 4]}),
    ],
)
def test_what_it_shows_is_as_old_as_the_clips_it_has_learnt_from(task, rate, expected):
    streaming = shown_frames(Counting(), task, stream(rate))
    shown = [streaming(torch.tensor(float(number))) for number in range(9)]
    assert {number: shown[number] for number in expected} == expected
    streaming.forget()
    assert streaming(torch.tensor(9.0)) == [9, 9, 9, 9]


@pytest.mark.parametrize(
    ("rate", "every", "stride"), [(25, 1, 5), (Fraction(30000, 1001), 1, 6), (24, 1, 5), (60, 4, 3), (5, 1, 1)]
)
def test_the_stride_is_the_nearest_number_of_frames(rate, every, stride):
    assert shown_frames(Counting(), CLIPS, stream(rate, every=every)).stride == stride


@pytest.mark.parametrize(
    ("rate", "every", "sentence"),
    [
        (1, 1, r"needs 4 frames 0.2 s apart, but .* at 1 frames per second, so the nearest interval is 1 s; "
               "give a video with a higher frame rate, or another model"),
        (25, 3, r"read at 8.33333 frames per second, so the nearest interval is 0.24 s; .* or a lower --every"),
        (None, 1, "the images of surgery.mp4 have no frame rate; set --video-rate"),
    ],
)  # fmt: skip
def test_a_stream_without_such_frames_is_refused(rate, every, sentence):
    with pytest.raises(InferenceError, match=sentence):
        shown_frames(Counting(), CLIPS, stream(rate, every=every))


def test_one_image_is_its_own_past_and_single_frames_need_no_memory():
    assert shown_frames(Counting(), CLIPS, stream(None, total=1))(torch.tensor(3.0)) == [3, 3, 3, 3]
    network = Counting()
    assert shown_frames(network, SEGMENTATION, stream(None)) is network
    with pytest.raises(InferenceError, match="Identity takes clips but has no memory for streams"):
        shown_frames(torch.nn.Identity(), CLIPS, stream(25))


@pytest.mark.parametrize(("task", "instead"), [(CLIPS, 0), (PADDED, -1)])
def test_a_videos_predictions_are_those_of_its_clips(network, tmp_path, task, instead):
    path = write_video(tmp_path / "surgery.mp4", noise(9), rate=10)
    frames = FrameStream(path, height=32, width=64)
    predict = Predictor(shown_frames(network, task, frames), task)
    images = [item["image"] for item in frames]
    streamed = [predict(image, (32, 64))[0] for image in images]
    for number, outputs in enumerate(streamed):
        seen = images[: number + 1]
        clip = [seen[number - back if number >= back else instead] for back in (6, 4, 2, 0)]
        with torch.no_grad():
            torch.testing.assert_close(outputs, network(torch.stack(clip, 1)), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert not torch.allclose(streamed[-1], network(images[-1]), atol=1e-3)  # the past counts


def test_what_is_remembered_of_one_folder_is_forgotten_in_the_next(network, tmp_path):
    for number in range(3):
        write_image(tmp_path / "frames" / "a" / f"{number}.png", 60 * number)
        write_image(tmp_path / "frames" / "b" / f"{number}.png", 60 * number)
    frames = FrameStream(tmp_path / "frames", height=32, width=64, video_rate=5)
    predict = Predictor(shown_frames(network, CLIPS, frames), CLIPS)
    result = [predict(item["image"], (40, 50), sequence=item["shot"].sequence)[0] for item in frames]
    assert len(result) == 6
    for first, second in zip(result[:3], result[3:], strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(result[0], result[2])


@pytest.mark.slow
def test_surgfeds_network_holds_as_much_after_two_hundred_frames_as_after_fifty(monkeypatch, tmp_path):
    monkeypatch.setitem(ARCHITECTURES, "cpu", TOY)
    torch.manual_seed(0)
    sam2 = Sam2Clips(architecture="cpu", size=SIDE)
    early, late = segmented(sam2, tmp_path, (50, 200), interval=1 / RATE, say=str)
    assert early[:2] == late[:2] and early[0] > 0
    assert late[2] - early[2] < 8e6  # bytes of the process


def test_memory_does_not_grow(network):
    """The memory has six frames with maps of 160 channels at 2x2 and 256 at 1x1 in float32."""
    streaming, held = Streaming(network, 2), []
    image = torch.full((1, 3, 32, 32), 0.5)
    with torch.no_grad():
        for _ in range(40):
            streaming(image)
            storages = [x.untyped_storage() for frame in streaming._memory.frames for x in frame]
            held.append(sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()))
    assert held[5:] == [6 * (160 * 2 * 2 + 256) * 4] * 35
