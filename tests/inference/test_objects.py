"""Objects tracked from boxes in the first frame: parsing, errors, streams, messages."""

import csv
import json
from fractions import Fraction
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch

from shared_components.cli import main
from shared_components.core.bundle import load_bundle
from shared_components.core.task import checkpoint_header, make_task
from shared_components.core.trained_model import load_trained
from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream, Shot
from shared_components.inference.objects import Box, objects_in, recorded, task_of
from shared_components.inference.predict import Predictor, missed, shown_frames
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import save_weights
from tests.inference.conftest import PARTS, Bright, write_video

pytestmark = pytest.mark.slow

NUMBERS = {"frames": 2, "interval": 0.1, "targets_of": "all", "prompts": "first"}
FOLLOWING = make_task("segmentation", NUMBERS, classes=PARTS)


class Filled(torch.nn.Module):
    """Predicts every object inside its box, with twice the logit of the previous object."""

    stride, squares, takes_boxes = 32, True, True

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def begin_stream(self, boxes=None, *, stride=1, padding="first"):
        return boxes

    def remember(self, image, memory, boxes=None):
        outputs = torch.zeros(1, 1 + len(memory), *image.shape[-2:])
        for number, (x0, y0, x1, y1) in enumerate(memory.round().int().tolist(), 1):
            outputs[0, number] = -1
            outputs[0, number, y0:y1, x0:x1] = 2.0**number
        return outputs, memory


def stream(height=64, width=64, size=(100, 200), sequences=1):
    shot = Shot("a", np.zeros((*size, 3), np.uint8))
    return SimpleNamespace(
        height=height, width=width, sequences=sequences, source="frames", first=lambda: shot, rate=Fraction(10),
        total=None, every=1,
    )  # fmt: skip


def objects(boxes=None, mask=None, *, network=None, task=FOLLOWING, **of_stream):
    return objects_in(network or Filled(), task, stream(**of_stream), boxes=boxes, first_mask=mask)


@pytest.mark.parametrize(
    "given",
    [
        ["shaft=20,50,100,25", "clasper=0,0,10,10"],
        "shaft=20,50,100,25; clasper=0,0,10,10",
        [" shaft =20,50, 100,25;", "clasper=0,0,1e1,10"],
    ],
)
def test_boxes_are_in_pixels_of_the_frame_and_reach_the_network_in_its_own(given):
    result = objects(given)
    # the frame is 200 wide and 100 high, the network's input 64x64
    expected = [[20 * 0.32, 50 * 0.64, 120 * 0.32, 75 * 0.64], [0, 0, 3.2, 6.4]]
    torch.testing.assert_close(result.boxes, torch.tensor(expected))
    assert result.classes == PARTS and result.ids == (1, 3) and result.without_box == ["wrist"]
    assert recorded(result) == {"boxes": ["shaft=20,50,100,25", "clasper=0,0,10,10"]} and recorded(None) == {}


@pytest.mark.parametrize(
    "given", ["0,0,10,10; 5,5,10,10", ["0,0,10,10", "5,5,10,10"], [(0, 0, 10, 10), [5, 5, 10, 10]]]
)
def test_boxes_without_names_are_objects_of_their_own(given):
    result = objects(given)
    assert result.classes == ("background", "object 1", "object 2") and result.ids == (1, 2) and not result.without_box
    task = task_of(result, FOLLOWING)
    assert task.classes == result.classes and task.spec == FOLLOWING.spec and task_of(None, FOLLOWING) is FOLLOWING
    assert objects((5, 5, 10, 10)).given == (Box("", 5, 5, 10, 10),)  # as a command line of MONAI reads 5,5,10,10


def test_a_mask_of_the_first_frame_becomes_the_boxes_around_its_ids(tmp_path):
    mask = np.zeros((100, 200), np.uint8)
    mask[10:20, 30:70] = 2
    mask[99, 199] = 1
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    assert objects(mask=tmp_path / "mask.png").given == (Box("shaft", 199, 99, 1, 1), Box("wrist", 30, 10, 40, 10))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (None, "the model tracks objects from the video's first frame, but no object is given; give a box for each"),
        ("shaft", "box 'shaft' cannot be read; give left,top,width,height in pixels of the frame, such as 10,20"),
        *((given, f"box '{given}' cannot be read") for given in ("=1,2,3,4", "1,2,3", "1,2,nan,4", 7)),
        ("shaft=5,5,0,10", "box 'shaft=5,5,0,10' is empty, 0 wide and 10 high"),
        ("shaft=5,5,10,-1", "box 'shaft=5,5,10,-1' is empty"),
        ("150,0,51,10", "box '150,0,51,10' exceeds the first frame, which is 200 wide and 100 high"),
        ("-1,0,51,10", "box '-1,0,51,10' exceeds the first frame"),
        ("needle=1,2,3,4", "box 'needle' is not a class of the model; use one of shaft, wrist, clasper"),
        ("background=1,2,3,4", "box 'background' is not a class of the model"),
        ("shaft=1,2,3,4; 5,6,7,8", "box '5,6,7,8' has no class, but other boxes have; name a class in all boxes"),
        ([f"{n},0,1,1" for n in range(128)] * 2, "256 boxes are given, but a mask has 255 ids; give fewer"),
    ],
)
def test_boxes_that_cannot_be_are_refused(given, sentence):
    with pytest.raises(InferenceError) as caught:
        objects(given)
    assert str(caught.value).startswith(sentence) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "value", "sentence"),
    [
        (None, 0, r"mask.png cannot be used \(file is missing\); give the file of a mask of the first frame"),
        ((100, 100), 1, r"mask.png is 100x100, but the first frame is 200x100; give a mask of the first"),
        ((100, 200), 4, r"mask.png has id 4, but the model's ids are 0 background, 1 shaft, 2 wrist, 3 clasper; use"),
        ((100, 200), 0, r"mask.png contains no object; give a mask with some of the ids 0 background"),
        ((100, 200, 3), (1, 2, 3), r"mask.png cannot be used \(is a colour image, not a mask of ids\); export one"),
    ],
)
def test_a_mask_that_cannot_be_is_refused(tmp_path, shape, value, sentence):
    if shape is not None:
        cv2.imwrite(str(tmp_path / "mask.png"), np.full(shape, value, np.uint8))
    with pytest.raises(InferenceError, match=sentence):
        objects(mask=tmp_path / "mask.png")
    with pytest.raises(InferenceError, match="both boxes and a first mask are given; give only one"):
        objects("1,2,3,4", tmp_path / "mask.png")


@pytest.mark.parametrize(
    ("of_stream", "sentence"),
    [
        ({"sequences": 3}, "boxes belong to one video's first frame, but frames has 3 folders of images; give one of"),
        ({"height": 64, "width": 96}, "the size is 64x96, but Filled takes squares of multiples of 32; use 64x64"),
        ({"height": 70, "width": 70}, "the size is 70x70, but Filled takes squares of multiples of 32; use 64x64"),
    ],
)
def test_what_is_shown_must_be_one_video_and_a_square(of_stream, sentence):
    with pytest.raises(InferenceError, match=sentence):
        objects("1,2,3,4", **of_stream)


def test_a_model_that_takes_no_boxes_gets_none():
    assert objects(network=Bright()) is None
    depth = make_task("depth")
    assert objects(task=depth) is None
    for options, output in (
        ({"network": Bright()}, "Bright predicts its classes in each frame"),
        ({"task": depth}, "Filled predicts depth of the whole frame"),
    ):
        with pytest.raises(InferenceError, match=f"takes no boxes, since {output}; remove"):
            objects("1,2,3,4", **options)


def test_objects_of_one_class_are_one_and_a_class_without_a_box_is_empty():
    result = objects("clasper=0,0,100,50; shaft=0,0,50,100; clasper=150,0,50,50")
    network = shown_frames(Filled(), FOLLOWING, stream(), result)
    outputs, mask = Predictor(network, task_of(result, FOLLOWING))(torch.zeros(1, 3, 64, 64), (64, 64))
    assert outputs.shape == (1, 4, 64, 64) and (outputs[:, 2] < -10).all()
    assert (mask[:32, :32] == 3).sum() == 16 * 32  # the shaft's box is the surer one where both are
    assert (mask[:, :16] == 1).all() and (mask[:32, 48:] == 3).all() and (mask[32:, 16:] == 0).all()
    assert list(missed(network)) == ["classes without a box, whose masks are empty: wrist"]
    assert not list(missed(Filled()))


def test_a_box_in_which_nothing_is_found_is_said():
    result = objects("shaft=0,0,0.5,0.5; wrist=0,0,50,50; clasper=0,0,50,50")
    network = shown_frames(Filled(), FOLLOWING, stream(), result)
    for _ in range(2):
        network(torch.zeros(1, 3, 64, 64))
    (message,) = missed(network)
    assert message == "box shaft=0,0,0.5,0.5: no object was found in the first frame, so its mask is empty there"
    network.forget()
    assert network(torch.zeros(1, 3, 64, 64))[0, 2].max() == 4


def test_a_model_of_single_frames_with_boxes_remembers_its_boxes():
    task = make_task("segmentation", {"prompts": "first"}, classes=PARTS)
    network = shown_frames(Filled(), task, stream(), objects("wrist=0,0,50,50", task=task))
    assert network.stride == 1 and all(network(torch.zeros(1, 3, 64, 64))[0, 2].max() == 2 for _ in range(3))


# ---- By the network of SurgFed


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Return a function that writes random weights of SurgFed's network for 64x64 with a federation's header."""

    def checkpoint(kind="segmentation", classes=PARTS):
        task = make_task(kind, NUMBERS, classes=classes if kind == "segmentation" else ())
        chosen = {"size": 64}
        torch.manual_seed(3)
        network = build_network(load_bundle("surgfed", network=chosen).network, out_channels=task.channels)
        path = tmp_path_factory.mktemp("weights") / f"{kind}.safetensors"
        notes = checkpoint_header("surgfed", "surgfed", task, NUMBERS, size=(64, 64), network=chosen)
        save_weights(path, network.state_dict(), notes)
        return path

    return checkpoint


@pytest.fixture(scope="module")
def segments(checkpoint):
    return checkpoint()


@pytest.fixture(scope="module")
def network(segments):
    return load_trained(segments, bundle="pvt_fpn").network.eval()


@pytest.fixture
def surgery(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    frames = [generator.integers(0, 255, (48, 96, 3), dtype=np.uint8) for _ in range(5)]
    return write_video(tmp_path / "surgery.mp4", frames, rate=10)


def test_surgfl_segment_writes_what_the_network_predicts_of_the_clip_with_these_boxes(
    surgery, segments, network, tmp_path, capsys
):
    words = ["--box", "clasper=48,0,48,24", "--box", "shaft=0,12,30,36", "--nifti"]
    assert main(["segment", str(surgery), "--model", str(segments), *words]) == 0
    out = tmp_path / "surgery-segmented"
    assert {path.name for path in out.iterdir()} == {
        "intervals.csv", "masks", "nifti", "overlay.mp4", "prediction.json", "visible.csv",
    }  # fmt: skip
    clip = torch.stack([item["image"] for item in FrameStream(surgery, height=64, width=64)], 1)
    boxes = torch.full((1, 5, 3, 4), torch.nan)
    boxes[0, 0, 0] = torch.tensor([0, 16, 20, 64])
    boxes[0, 0, 2] = torch.tensor([32, 0, 64, 32])
    with torch.no_grad():
        expected = network(clip, boxes).argmax(2)[0]
    result = [cv2.imread(str(path), cv2.IMREAD_UNCHANGED) for path in sorted((out / "masks").iterdir())]
    assert len(result) == 5 and {int(one) for mask in result for one in np.unique(mask)} > {0}
    for mask, ids in zip(result, expected.numpy().astype(np.uint8), strict=True):
        assert (mask == cv2.resize(ids, (96, 48), interpolation=cv2.INTER_NEAREST_EXACT)).mean() > 0.999
    record = json.loads((out / "prediction.json").read_text())
    assert record["boxes"] == ["clasper=48,0,48,24", "shaft=0,12,30,36"] and record["frames"] == 5
    assert "\nclasses without a box, whose masks are empty: wrist\n" in capsys.readouterr().out


def test_objects_without_a_class_have_rows_and_labels_of_their_own(surgery, segments, tmp_path):
    words = ["--box", "0,0,48,24", "--box", "10,10,20,20", "--out", "seen", "--nifti"]
    assert main(["segment", str(surgery), "--model", str(segments), *words]) == 0
    with (tmp_path / "seen" / "visible.csv").open(newline="") as file:
        assert next(csv.reader(file))[-2:] == ["object 1", "object 2"]
    assert '"object 2"' in (tmp_path / "seen" / "nifti" / "labels.txt").read_text()


def test_weights_without_a_head_have_the_classes_of_their_header(checkpoint):
    trained = load_trained(checkpoint(classes=("background", "uterus")), bundle="surgfed")
    assert trained.network.objects == 1 and trained.task.channels == 2 and not trained.network.is_depth
    assert load_trained(checkpoint("depth"), bundle="surgfed").network.is_depth


def test_depth_is_written_by_the_network_of_surgfed_and_takes_squares(surgery, checkpoint, tmp_path, capsys):
    depth = str(checkpoint("depth"))
    assert main(["segment", str(surgery), "--model", depth]) == 0
    assert len(list((tmp_path / "surgery-segmented" / "depth").iterdir())) == 5
    assert main(["segment", str(surgery), "--model", depth, "--size", "64x96", "--out", "other"]) == 2
    assert "the size is 64x96, but Sam2Clips takes squares of multiples of 32" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
