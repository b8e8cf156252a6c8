"""The inference config: masks and overlays of a folder and of a video, at the frames' own size."""

import cv2
import numpy as np
import pytest
import torch

from shared_components.bundle_config import build_network, load_bundle
from shared_components.checkpoints import export_pt, save_weights

SIZE = {"height": 64, "width": 96}


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(1)
    path = tmp_path / "model.safetensors"
    save_weights(path, build_network(load_bundle("pfedsis").network).state_dict())
    return path


def test_a_folder_becomes_masks_and_overlays(run, checkpoint, tmp_path):
    folder = tmp_path / "frames"
    folder.mkdir()
    for name in ("frame2.png", "frame10.jpg"):
        cv2.imwrite(str(folder / name), np.full((70, 100, 3), 90, np.uint8))
    workflow = run(
        "pfedsis",
        "inference",
        input=str(folder),
        checkpoint=str(checkpoint),
        output_dir=str(tmp_path / "out"),
        **SIZE,
    )
    for kind in ("masks", "overlays"):
        assert sorted(path.name for path in (tmp_path / "out" / kind).iterdir()) == [
            "frame10.png",
            "frame2.png",
        ]
    mask = cv2.imread(str(tmp_path / "out" / "masks" / "frame2.png"), cv2.IMREAD_UNCHANGED)
    assert mask.shape == (70, 100) and mask.max() <= 3
    assert not (tmp_path / "out" / "overlay.mp4").exists()
    assert workflow.check_properties() == []


def test_a_video_becomes_masks_and_an_overlay_video(run, checkpoint, video, tmp_path):
    run(
        "pfedsis",
        "inference",
        input=str(video),
        checkpoint=str(checkpoint),
        output_dir=str(tmp_path / "out"),
        **SIZE,
    )
    masks = sorted((tmp_path / "out" / "masks").iterdir())
    assert [path.name for path in masks] == [f"frame_{index:06d}.png" for index in range(5)]
    capture = cv2.VideoCapture(str(tmp_path / "out" / "overlay.mp4"))
    assert capture.get(cv2.CAP_PROP_FRAME_COUNT) == 5 and capture.get(cv2.CAP_PROP_FPS) == 10


def test_the_number_of_classes_follows_the_checkpoint(run, video, tmp_path):
    save_weights(
        tmp_path / "three.safetensors",
        build_network(load_bundle("pvt_fpn").network, out_channels=3).state_dict(),
    )
    export_pt(tmp_path / "three.safetensors", tmp_path / "models" / "model.pt")
    run(
        "pvt_fpn", "inference",
        input=str(video), checkpoint=str(tmp_path / "models" / "model.pt"), output_dir=str(tmp_path / "out"), **SIZE,
    )  # fmt: skip
    assert len(list((tmp_path / "out" / "masks").iterdir())) == 5


def test_without_a_checkpoint_the_bundles_own_weights_predict(run, video, tmp_path):
    """In half precision, as they are shipped, at the size that their header says, to the same masks as in float32."""
    torch.manual_seed(1)
    network = build_network(load_bundle("pvt_fpn").network)
    halves = {name: value.half() for name, value in network.state_dict().items()}
    notes = {"bundle": "pvt_fpn", "task": "segmentation", "outputs": "background,shaft,wrist,clasper"}
    notes |= {"height": "64", "width": "96"}
    save_weights(tmp_path / "models" / "model.safetensors", halves, notes)
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


def test_a_bundle_without_weights_asks_for_a_checkpoint(run, refusal, video, tmp_path):
    sentence = refusal(run, "pfedsis", "inference", input=str(video), bundle_root=str(tmp_path), **SIZE)
    assert sentence.startswith(
        f"checkpoint {tmp_path}/models/model.safetensors does not exist; give the path"
    )


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
        ({"inputs": "x"}, "unknown option --inputs; did you mean --input?"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_sentence(
    run, refusal, checkpoint, video, tmp_path, overrides, sentence
):
    given = {
        "input": str(video),
        "checkpoint": str(checkpoint),
        "output_dir": str(tmp_path / "out"),
        **overrides,
    }
    assert refusal(run, "pfedsis", "inference", **given).startswith(sentence)
    assert not (tmp_path / "out").exists()
