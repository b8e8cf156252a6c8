"""The inference config: masks, overlays and tables of a folder and of a video, at the frames' own size."""

import csv
import json

import cv2
import numpy as np
import pytest
import torch

from shared_components.core.shipped_weights import sha256_of
from shared_components.networks.bundle_config import build_network, load_bundle
from shared_components.networks.checkpoints import export_pt, save_weights

SIZE = {"height": 64, "width": 96}


def test_a_folder_becomes_masks_and_overlays(run, checkpoint, tmp_path):
    folder = tmp_path / "frames"
    folder.mkdir()
    for name in ("frame2.png", "frame10.jpg"):
        cv2.imwrite(str(folder / name), np.full((70, 100, 3), 90, np.uint8))
    given = {"input": str(folder), "checkpoint": str(checkpoint), "output_dir": str(tmp_path / "out"), **SIZE}
    workflow = run("pfedsis", "inference", **given)
    for kind in ("masks", "overlays"):
        assert sorted(path.name for path in (tmp_path / "out" / kind).iterdir()) == ["frame10.png", "frame2.png"]
    mask = cv2.imread(str(tmp_path / "out" / "masks" / "frame2.png"), cv2.IMREAD_UNCHANGED)
    assert mask.shape == (70, 100) and mask.max() <= 3
    assert not (tmp_path / "out" / "overlay.mp4").exists()
    with (tmp_path / "out" / "visible.csv").open(newline="") as file:
        rows = {row["frame"]: float(row["1"]) for row in csv.DictReader(file)}
    assert rows == pytest.approx({"frame2": 100 * (mask == 1).mean(), "frame10": rows["frame10"]}, abs=1e-3)
    assert workflow.check_properties() == []


def test_the_options_of_the_command_are_those_of_the_config(run, checkpoint, tmp_path):
    for name in ("day-1/1.png", "day-1/2.png", "day-1/3.png"):
        (tmp_path / "frames" / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / "frames" / name), np.full((70, 100, 3), 90, np.uint8))
    out = tmp_path / "out"
    given = {"input": str(tmp_path / "frames"), "checkpoint": str(checkpoint), "output_dir": str(out), **SIZE}
    run("pfedsis", "inference", **given, every=2, video_rate=5, masks="none", pictures=False, precision="bf16")
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == [
        "intervals.csv", "overlays/day-1.mp4", "prediction.json", "visible.csv",
    ]  # fmt: skip


def test_an_error_on_the_way_leaves_nothing(run, refusal, checkpoint, tmp_path):
    (tmp_path / "frames").mkdir()
    cv2.imwrite(str(tmp_path / "frames" / "1.png"), np.full((70, 100, 3), 90, np.uint8))
    (tmp_path / "frames" / "2.png").write_bytes(b"")
    given = {"checkpoint": str(checkpoint), "output_dir": str(tmp_path / "out"), **SIZE}
    sentence = refusal(run, "pfedsis", "inference", input=str(tmp_path / "frames"), **given)
    assert sentence.startswith(f"image {tmp_path}/frames/2.png cannot be read")
    assert not (tmp_path / "out").exists()


def test_a_bundle_without_weights_says_how_to_get_some(run, refusal, video, tmp_path):
    given = {"bundle_root": str(tmp_path), "output_dir": str(tmp_path / "out"), **SIZE}
    assert refusal(run, "pfedsis", "inference", input=str(video), **given) == (
        f"bundle {tmp_path.name!r} ships no weights ({tmp_path}/models/model.json does not exist); name a checkpoint "
        "with --checkpoint, or make some with `surgfl pretrain` and `surgfl ship`"
    )


def test_without_a_checkpoint_the_bundles_own_weights_predict(run, video, tmp_path):
    """In half precision, as they are shipped, at the size that their header says, to the same masks as in float32."""
    torch.manual_seed(1)
    network = build_network(load_bundle("pvt_fpn").network)
    halves = {name: value.half() for name, value in network.state_dict().items()}
    notes = {"bundle": "pvt_fpn", "task": "segmentation", "outputs": "background,shaft,wrist,clasper"}
    notes |= {"height": "64", "width": "96"}
    own = tmp_path / "models" / "model.safetensors"
    save_weights(own, halves, notes)
    (own.parent / "model.json").write_text(json.dumps({"sha256": sha256_of(own)}))
    save_weights(tmp_path / "full.safetensors", {n: v.float() for n, v in halves.items()}, notes)
    given = {"input": str(video), "height": 512, "width": 640}
    for bundle in ("pfedsis", "pvt_fpn"):
        run(bundle, "inference", bundle_root=str(tmp_path), output_dir=str(tmp_path / bundle), **given)
    full = str(tmp_path / "full.safetensors")
    run("pvt_fpn", "inference", checkpoint=full, output_dir=str(tmp_path / "full"), **given)
    masks = [sorted((tmp_path / out / "masks").iterdir()) for out in ("pfedsis", "pvt_fpn", "full")]
    assert len(masks[0]) == 5
    for one, two, three in zip(*masks, strict=True):
        assert one.read_bytes() == two.read_bytes() == three.read_bytes()


def test_weights_in_half_precision_are_exported_in_full(tmp_path):
    save_weights(tmp_path / "half.safetensors", {"a": torch.tensor([0.5, 2.0]).half(), "n": torch.tensor(3)})
    export_pt(tmp_path / "half.safetensors", tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert state["a"].dtype == torch.float32 and state["a"].tolist() == [0.5, 2.0]
    assert state["n"].dtype == torch.int64


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"input": None}, "input: not given; add --input"),
        ({"input": "/nowhere"}, "input /nowhere does not exist"),
        ({"checkpoint": "/nowhere/model.pt"}, "checkpoint /nowhere/model.pt does not exist"),
        ({"every": 0}, "--every is 0; it is a whole number from 1 on"),
        ({"precision": "half"}, "precision is 'half'; use one of float32, bf16"),
        ({"inputs": "x"}, "unknown option --inputs; did you mean --input?"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_sentence(
    run, refusal, checkpoint, video, tmp_path, overrides, sentence
):
    given = {"input": str(video), "checkpoint": str(checkpoint), "output_dir": str(tmp_path / "out"), **overrides}
    assert refusal(run, "pfedsis", "inference", **given).startswith(sentence)
    assert not (tmp_path / "out").exists()
