"""The evaluate and inference configs: metrics, masks, overlays, boxes, depth, tables, errors."""

import csv
import hashlib
import json

import cv2
import numpy as np
import pytest
import torch

from shared_components.cli import main
from shared_components.core.bundle import load_bundle
from shared_components.core.shipped_weights import sha256_of
from shared_components.core.task import checkpoint_header, make_task
from shared_components.core.trained_model import load_trained
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.inference.frames import FrameStream
from shared_components.inference.video import look_at
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import load_weights, save_weights
from tests.bundles.conftest import SHIPPING, masks, scored_by_hand
from tests.inference.conftest import noise, write_video

SIZE = {"height": 64, "width": 96}


@pytest.fixture
def evaluate(run, site_config, small, tmp_path):
    def evaluate(checkpoint, bundle="pfedsis", **overrides):
        options = {"site_config": str(site_config), "checkpoint": checkpoint and str(checkpoint), **small}
        run(bundle, "train", "evaluate", **options | {"output_dir": str(tmp_path / "results")} | overrides)
        return json.loads((tmp_path / "results" / "metrics.json").read_text())

    return evaluate


def test_summary_and_table_hold_the_metrics_at_the_masks_resolution(evaluate, checkpoint, site_config, tmp_path):
    torch.manual_seed(1)
    network = build_network(load_bundle("pfedsis").network).eval()
    shapes = {read_sample(frame).targets["label"].shape for frame in samples(load_site(site_config), "test")}
    assert shapes == {(128, 192)}
    expected = scored_by_hand(site_config, lambda image: network(image).argmax(1)[0], ("shaft", "wrist", "clasper"))
    summary = evaluate(checkpoint)
    assert {key: summary[key] for key in expected} == expected
    assert summary["site"] == "hospital-a" and summary["split"] == "test" and summary["frames"] == 2
    assert summary["checkpoint_sha256"] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert {"hd95", "hd95_monai", "assd"} <= set(summary["definitions"])
    with open(tmp_path / "results" / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    places = [("0", "shaft"), ("0", "wrist"), ("0", "clasper"), ("1", "shaft")]
    assert [(row["video"], row["frame"], row["class"]) for row in rows[:4]] == [("test/video3", *p) for p in places]
    shaft = [float(row["dice"]) for row in rows if row["class"] == "shaft"]
    assert np.isclose(np.mean(shaft), summary["dice"]["shaft"], atol=1e-5)


@pytest.mark.parametrize("bundle", SHIPPING)
@pytest.mark.full_width
def test_without_a_checkpoint_the_shipped_weights_are_evaluated(run, zoo, bundle, site_config, tmp_path):
    of_clips = {"fedst": "history: false\n", "surgfed": "rate: 1.0\n"}
    site_config.write_text(site_config.read_text() + of_clips.get(bundle, ""))
    run(bundle, "train", "evaluate", site_config=str(site_config), output_dir=str(tmp_path / "results"))
    shipped = (zoo / bundle / "models" / "model.safetensors").read_bytes()
    result = json.loads((tmp_path / "results" / "metrics.json").read_text())
    assert result["checkpoint_sha256"] == hashlib.sha256(shipped).hexdigest() and result["frames"] == 2


def test_other_splits_do_and_a_refusal_leaves_their_result(evaluate, refusal, checkpoint, three_class_site, tmp_path):
    summary = evaluate(checkpoint, split="validation", empty_policy="paper")
    assert summary["split"] == "validation" and summary["policy"] == "paper"
    sentence = refusal(evaluate, checkpoint, site_config=str(three_class_site))
    assert "trained for 4 classes and the site has 3" in sentence and str(checkpoint) in sentence
    save_weights(tmp_path / "other.safetensors", {"weight": torch.ones(1)})
    sentence = refusal(evaluate, str(tmp_path / "other.safetensors"))
    assert "other.safetensors is a checkpoint of another network than PvtFpn" in sentence
    assert json.loads((tmp_path / "results" / "metrics.json").read_text()) == summary


@pytest.fixture
def of_parts(checkpoint):
    """A checkpoint whose header names the classes that it has learnt."""
    notes = {"task": "segmentation", "outputs": "background,shaft,wrist,clasper"}
    save_weights(checkpoint, load_weights(checkpoint), notes)
    return checkpoint


@pytest.mark.parametrize(("classes", "merged"), [
    (None, {"background": ["background"], "shaft": ["shaft"], "manipulator": ["wrist", "clasper"]}),
    ("foreground", {"background": ["background"], "instrument": ["shaft", "wrist", "clasper"]}),
])  # fmt: skip
def test_a_model_of_parts_is_scored_where_classes_are_coarser(evaluate, of_parts, three_class_site, classes, merged):
    if classes:
        three_class_site.write_text(three_class_site.read_text() + f"classes: {classes}\n")
    result = evaluate(of_parts, site_config=str(three_class_site))
    assert result["merged_classes"] == merged
    torch.manual_seed(1)
    network = build_network(load_bundle("pfedsis").network).eval()
    names = ["background", "shaft", "wrist", "clasper"]

    def classify(image):
        learnt = network(image).double().softmax(1)[0]
        return torch.stack([sum(learnt[names.index(n)] for n in members) for members in merged.values()]).argmax(0)

    expected = scored_by_hand(three_class_site, classify, tuple(merged)[1:])
    assert {key: result[key] for key in expected} == expected


@pytest.mark.parametrize(("overrides", "sentence"), [
    ({"split": "tets"}, "site hospital-a has no split 'tets'; use one of train, validation, test"),
    ({"checkpoint": None}, "checkpoint: not given; add --checkpoint"),
    ({"empty_policy": "skip"}, "empty_policy is 'skip'; use one of diagonal, paper"),
    ({"splt": "test"}, "unknown option --splt; did you mean --split?"),
])  # fmt: skip
def test_a_wrong_command_line_of_evaluation_is_refused(evaluate, refusal, checkpoint, overrides, sentence, tmp_path):
    assert sentence in refusal(evaluate, **{"checkpoint": str(checkpoint), **overrides})
    assert not (tmp_path / "results").exists()


def test_a_folder_becomes_masks_and_overlays_and_options_are_those_of_the_command(run, checkpoint, tmp_path):
    folder = tmp_path / "frames"
    folder.mkdir()
    for name in ("frame2.png", "frame10.jpg"):
        cv2.imwrite(str(folder / name), np.full((70, 100, 3), 90, np.uint8))
    options = {"input": str(folder), "checkpoint": str(checkpoint), "output_dir": str(tmp_path / "out"), **SIZE}
    workflow = run("pfedsis", "inference", **options)
    for kind in ("masks", "overlays"):
        assert sorted(path.name for path in (tmp_path / "out" / kind).iterdir()) == ["frame10.png", "frame2.png"]
    mask = cv2.imread(str(tmp_path / "out" / "masks" / "frame2.png"), cv2.IMREAD_UNCHANGED)
    assert mask.shape == (70, 100) and mask.max() <= 3
    assert not (tmp_path / "out" / "overlay.mp4").exists()
    with (tmp_path / "out" / "visible.csv").open(newline="") as file:
        rows = {row["frame"]: float(row["1"]) for row in csv.DictReader(file)}
    assert rows == pytest.approx({"frame2": 100 * (mask == 1).mean(), "frame10": rows["frame10"]}, abs=1e-3)
    assert workflow.check_properties() == []

    folder.rename(tmp_path / "day-1")
    (tmp_path / "days").mkdir()
    (tmp_path / "day-1").rename(tmp_path / "days" / "day-1")
    out = tmp_path / "options"
    options |= {"input": str(tmp_path / "days"), "output_dir": str(out)}
    run("pfedsis", "inference", **options, every=2, video_rate=5, masks="none", pictures=False, precision="bf16")
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == [
        "intervals.csv", "overlays/day-1.mp4", "prediction.json", "visible.csv",
    ]  # fmt: skip


def test_an_error_on_the_way_and_a_bundle_without_weights_leave_nothing(run, refusal, checkpoint, video, tmp_path):
    (tmp_path / "frames").mkdir()
    cv2.imwrite(str(tmp_path / "frames" / "1.png"), np.full((70, 100, 3), 90, np.uint8))
    (tmp_path / "frames" / "2.png").write_bytes(b"")
    options = {"output_dir": str(tmp_path / "out"), **SIZE}
    given = {"input": str(tmp_path / "frames"), "checkpoint": str(checkpoint)}
    sentence = refusal(run, "pfedsis", "inference", **given, **options)
    assert sentence.startswith(f"image {tmp_path}/frames/2.png cannot be read")
    assert refusal(run, "pfedsis", "inference", input=str(video), bundle_root=str(tmp_path), **options) == (
        f"bundle {tmp_path.name!r} ships no weights ({tmp_path}/models/model.json does not exist); name a checkpoint "
        "with --checkpoint, or make some with `surgfl pretrain` and `surgfl ship`"
    )
    assert not (tmp_path / "out").exists()


def test_without_a_checkpoint_the_bundles_own_weights_predict(run, video, tmp_path):
    """Weights in half precision give the same masks as in float32, at the header's size."""
    torch.manual_seed(1)
    network = build_network(load_bundle("pvt_fpn").network)
    halves = {name: value.half() for name, value in network.state_dict().items()}
    notes = {"bundle": "pvt_fpn", "task": "segmentation", "outputs": "background,shaft,wrist,clasper"}
    notes |= {"height": "64", "width": "96"}
    own = tmp_path / "models" / "model.safetensors"
    save_weights(own, halves, notes)
    (own.parent / "model.json").write_text(json.dumps({"sha256": sha256_of(own)}))
    save_weights(tmp_path / "full.safetensors", {n: v.float() for n, v in halves.items()}, notes)
    options = {"input": str(video), "height": 512, "width": 640}
    for bundle in ("pfedsis", "pvt_fpn"):
        run(bundle, "inference", bundle_root=str(tmp_path), output_dir=str(tmp_path / bundle), **options)
    options["checkpoint"] = str(tmp_path / "full.safetensors")
    run("pvt_fpn", "inference", output_dir=str(tmp_path / "full"), **options)
    first, second, full = (masks(tmp_path / out) for out in ("pfedsis", "pvt_fpn", "full"))
    assert first == second == full and len(full) == 5


@pytest.mark.parametrize(("overrides", "sentence"), [
    ({"input": None}, "input: not given; add --input"), ({"input": "/nowhere"}, "input /nowhere does not exist"),
    ({"checkpoint": "/nowhere/model.pt"}, "checkpoint /nowhere/model.pt does not exist"),
    ({"every": 0}, "--every is 0; it is a whole number from 1 on"),
    ({"precision": "half"}, "precision is 'half'; use one of float32, bf16"),
    ({"inputs": "x"}, "unknown option --inputs; did you mean --input?"),
    ({"preprocessing#transforms#2#height": 64}, "--preprocessing has no effect"),
])  # fmt: skip
def test_a_wrong_command_line_of_inference_is_refused(run, refusal, checkpoint, video, tmp_path, overrides, sentence):
    options = {"input": str(video), "checkpoint": str(checkpoint), "output_dir": str(tmp_path / "out"), **overrides}
    assert refusal(run, "pfedsis", "inference", **options).startswith(sentence)
    assert not (tmp_path / "out").exists()


NUMBERS = {"frames": 2, "interval": 0.1, "targets_of": "all", "prompts": "first"}
CLASSES = ("background", "shaft", "wrist")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a function that writes random weights of SurgFed's network for 64x64 with a federation's header."""

    def model(kind):
        task = make_task(kind, NUMBERS, classes=CLASSES if kind == "segmentation" else ())
        torch.manual_seed(3)
        network = build_network(load_bundle("surgfed", network={"size": 64}).network, out_channels=task.channels)
        path = tmp_path_factory.mktemp("weights") / f"{kind}.safetensors"
        notes = checkpoint_header("surgfed", "surgfed", task, NUMBERS, size=(64, 64), network={"size": 64})
        save_weights(path, network.state_dict(), notes)
        return path

    return model


@pytest.fixture
def followed(tmp_path):
    return write_video(tmp_path / "surgery.mp4", noise(3, 48, 96), rate=10)


def test_boxes_give_the_files_of_surgfl_segment(run, refusal, model, followed, tmp_path):
    path, out, other = model("segmentation"), tmp_path / "out", tmp_path / "other"
    options = {"input": str(followed), "checkpoint": str(path), "output_dir": str(out)}
    run("surgfed", "inference", **options, boxes="shaft=0,0,48,24; wrist=48,24,40,20")
    words = ["--box", "shaft=0,0,48,24", "--box", "wrist=48,24,40,20"]
    assert main(["segment", str(followed), "--model", str(path), "--out", str(other), *words]) == 0
    files = sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    assert sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file()) == files and len(files) == 7
    for name in files:
        if name.suffix in (".png", ".csv"):
            assert (out / name).read_bytes() == (other / name).read_bytes()
    assert json.loads((out / "prediction.json").read_text())["boxes"] == ["shaft=0,0,48,24", "wrist=48,24,40,20"]
    none = refusal(run, "surgfed", "inference", **options)
    assert none.startswith("the model tracks objects from the video's first frame, but no object is given; give a box")
    outside = refusal(run, "surgfed", "inference", **options, boxes=(90, 0, 10, 10))
    assert outside.startswith("box '90,0,10,10' exceeds the first frame, which is 96 wide and 48 high")
    mapping = refusal(run, "surgfed", "inference", **options, boxes={"shaft": 1})
    assert mapping.startswith("--boxes is {'shaft': 1}; it is")


def test_depth_is_a_video_and_files_of_16_bits(run, refusal, model, followed, tmp_path):
    path, out = model("depth"), tmp_path / "out"
    options = {"input": str(followed), "checkpoint": str(path), "output_dir": str(out)}
    run("surgfed", "inference", **options)
    assert look_at(out / "overlay.mp4").frames == 3
    trained = load_trained(path, bundle="surgfed")
    clip = torch.stack([item["image"] for item in FrameStream(followed, height=64, width=64)], 1)
    boxes = torch.full((1, 3, 1, 4), torch.nan)
    boxes[0, 0] = torch.tensor([0, 0, 64, 64])  # as in training, `prompts.whole_frames`
    with torch.no_grad():
        expected = trained.task.predict(trained.network.eval(), {"image": clip, "boxes": boxes})[0].numpy()
    for number, depth in enumerate(expected):
        stored = cv2.imread(str(out / "depth" / f"frame_{number:06d}.png"), cv2.IMREAD_UNCHANGED)
        assert stored.dtype == np.uint16 and stored.shape == (48, 96)
        assert np.abs(stored / 256 - cv2.resize(depth, (96, 48))).max() < 0.01
    sentence = refusal(run, "surgfed", "inference", **options, boxes="0,0,10,10")
    assert sentence.startswith("the model takes no boxes, since Sam2Clips predicts depth of the whole frame; remove")
