"""`surgfl segment`: from a video to its overlay, and one-sentence errors."""

import csv
import json
import shutil
from fractions import Fraction
from unittest.mock import Mock

import cv2
import pytest
import torch

from shared_components.cli import main
from shared_components.core.trained_model import load_trained
from shared_components.inference.frames import FrameStream
from shared_components.inference.predict import Predictor
from shared_components.inference.video import H264Video, look_at
from shared_components.networks import bundle_config
from shared_components.scenes.scene import render_video
from tests.federation.conftest import narrow  # noqa: F401
from tests.inference.conftest import PARTS, write_image


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Run in an empty folder, and restore the number of threads."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def surgery(tmp_path):
    video = H264Video(tmp_path / "surgery.mp4", rate=Fraction(10))
    scenes = render_video("rose", 1, frames=5, height=64, width=96, rate=10)
    for number, scene in enumerate(scenes):
        video.add(scene.image, Fraction(number, 10))
    video.close()
    return tmp_path / "surgery.mp4"


def test_a_video_becomes_an_overlay_masks_and_tables(surgery, model, tmp_path, capsys):
    checkpoint = model()
    assert main(["segment", "surgery.mp4", "--model", str(checkpoint), "--threads", "1"]) == 0
    out = tmp_path / "surgery-segmented"
    assert sorted(path.name for path in out.iterdir()) == [
        "intervals.csv", "masks", "overlay.mp4", "prediction.json", "visible.csv",
    ]  # fmt: skip
    result = look_at(out / "overlay.mp4")
    assert (result.frames, result.rate) == (5, 10)

    trained = load_trained(checkpoint, bundle="pvt_fpn")
    for item in FrameStream(surgery, height=32, width=64):
        _, mask = Predictor(trained.network, trained.task)(item["image"], (64, 96))
        read = cv2.imread(str(out / "masks" / f"{item['shot'].name}.png"), cv2.IMREAD_UNCHANGED)
        assert (read == mask).all()
    with (out / "visible.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["seconds"]) for row in rows] == [0, 0.1, 0.2, 0.3, 0.4]
    assert float(rows[-1]["shaft"]) == pytest.approx(100 * (mask == 1).mean(), abs=1e-3)
    assert json.loads((out / "prediction.json").read_text())["height"] == 32

    output = capsys.readouterr().out
    assert (
        output.startswith(f"surgery.mp4 by {checkpoint}, at 32x64 on ")
        and "\n5 frames in " in output
        and " s, " in output
    )
    assert all(f"\n{part} " in output for part in PARTS[1:])
    assert "surgery-segmented/overlay.mp4" in output


def test_a_bundle_without_weights_says_how_to_get_some(surgery, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "bundles"
    shutil.copytree(bundle_config.bundles_folder() / "pvt_fpn" / "configs", folder / "pvt_fpn" / "configs")
    monkeypatch.setattr(bundle_config, "bundles_folder", lambda: folder)
    assert main(["segment", str(surgery)]) == 2
    error = capsys.readouterr().err
    assert "bundle 'pvt_fpn' ships no weights" in error and error.count("\n") == 1
    assert "; name a checkpoint with --model, or make some with `surgfl pretrain` and `surgfl ship`" in error


def test_a_folder_with_sub_folders_is_mirrored_and_size_and_steps_are_options(model, tmp_path):
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        write_image(tmp_path / "frames" / name)
    words = ["--model", str(model()), "--size", "64x32", "--every", "2", "--video-rate", "5", "--no-pictures"]
    assert main(["segment", "frames", *words]) == 0
    out = tmp_path / "frames-segmented"
    result = sorted(str(path.relative_to(out)) for path in out.rglob("*.[mp][pn][4g]"))
    assert result == ["masks/a/1.png", "masks/b/1.png", "overlays/a.mp4", "overlays/b.mp4"]
    record = json.loads((out / "prediction.json").read_text())
    assert (record["height"], record["width"], record["every"]) == (64, 32, 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere.mp4"], "input nowhere.mp4 does not exist; give a folder of frames or a video file"),
        (["surgery.mp4", "--model", "nowhere.pt"], "checkpoint nowhere.pt does not exist"),
        (["surgery.mp4", "--bundle", "pvt"], "bundle 'pvt' does not exist; there are fedst, fl_endovit, "),
        (["surgery.mp4", "--size", "large"], "--size is 'large'; give height and width such as 512x640"),
        (["surgery.mp4", "--size", "33x64"], "PvtFpn takes images of 3 channels, height and width multiples of 32"),
        (["surgery.mp4", "--threads", "0"], "--threads is 0; give a whole number from 1 on"),
        (["surgery.mp4", "--device", "cuda:99"], "device 'cuda:99' is not available on this machine; use one of auto"),
        (["surgery.mp4", "--every", "0"], "input: every is 0; it is a whole number, at least 1"),
        (["surgery.mp4", "--out", "."], "folder . contains 'model.safetensors', which is not part of"),
        (["surgery.mp4", "--out", "surgery.mp4"], "surgery.mp4 is a file; give a folder for the results"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(surgery, model, tmp_path, capsys, words, sentence):
    path = model()
    given = [] if {"--model", "--bundle"} & set(words) else ["--model", str(path)]
    assert main(["segment", *words, *given]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"surgfl segment: {sentence}") and error.count("\n") == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.safetensors", "surgery.mp4"]


def test_a_file_name_with_an_escape_reaches_no_terminal_and_a_model_of_another_task_is_refused(surgery, model, capsys):
    assert main(["segment", "a\x1b[2J.mp4", "--model", "b\x1b]0;x\x07.pt"]) == 2
    error = capsys.readouterr().err
    assert "b.pt" in error and not set(error) & set("\x1b\x07")
    assert main(["segment", str(surgery), "--model", str(model("reconstruction"))]) == 2
    assert "model.safetensors has learnt reconstruction; give one of segmentation or depth" in capsys.readouterr().err


@pytest.mark.full_width
def test_depth_is_a_video_and_files_of_16_bits(surgery, model, tmp_path, capsys):
    checkpoint = str(model("depth"))
    assert main(["segment", str(surgery), "--model", checkpoint]) == 0
    out = tmp_path / "surgery-segmented"
    assert sorted(path.name for path in out.iterdir()) == ["depth", "overlay.mp4", "prediction.json"]
    assert look_at(out / "overlay.mp4").frames == 5
    trained = load_trained(tmp_path / "model.safetensors", bundle="pvt_fpn")
    for item in FrameStream(surgery, height=32, width=64):
        _, depth = Predictor(trained.network, trained.task)(item["image"], (64, 96))
        stored = cv2.imread(str(out / "depth" / f"{item['shot'].name}.png"), cv2.IMREAD_UNCHANGED)
        assert stored.dtype == "uint16" and abs(stored / 256 - depth).max() <= 1 / 512 + 1e-4  # mm; decoders are fused
    for more, sentence in ((["--nifti"], "predicts no labels to export"), (["--box", "0,0,9,9"], "takes no boxes")):
        assert main(["segment", str(surgery), "--model", checkpoint, "--out", "other", *more]) == 2
        assert sentence in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_an_interrupted_run_leaves_nothing(surgery, model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("shared_components.inference.results.PredictionFolder.add", Mock(side_effect=KeyboardInterrupt))
    assert main(["segment", str(surgery), "--model", str(model())]) == 130
    assert "interrupted; no results were saved for the current input" in capsys.readouterr().out
    assert not (tmp_path / "surgery-segmented").exists()


def test_a_folder_of_videos_is_done_but_for_those_that_fail(surgery, model, tmp_path, capsys):
    (tmp_path / "films" / "day").mkdir(parents=True)
    shutil.copy(surgery, tmp_path / "films" / "day" / "10.mp4")
    shutil.copy(surgery, tmp_path / "films" / "b.mp4")
    (tmp_path / "films" / "a.mp4").write_bytes(b"none")
    words = ["--model", str(model()), "--masks", "none", "--device", "cpu"]
    assert main(["segment", "films", *words]) == 1
    out = tmp_path / "films-segmented"
    assert sorted(path.parent.relative_to(out).as_posix() for path in out.rglob("overlay.mp4")) == ["b", "day/10"]
    printed = capsys.readouterr()
    assert "2 of 3 videos done, in films-segmented" in printed.out and not (out / "a").exists()
    assert (
        printed.err.startswith("failed: films/a.mp4: video films/a.mp4 cannot be read") and printed.err.count("\n") == 1
    )
    assert main(["segment", "films", *words, "--box", "1,1,9,9"]) == 2
    assert "need one video, and films has 3; name one" in capsys.readouterr().err
    assert main(["segment", "films", *words, "--out", "films/results"]) == 2
    assert "lies in the input folder films; give" in capsys.readouterr().err
    shutil.copy(surgery, tmp_path / "films" / "b.mov")
    assert main(["segment", "films", *words]) == 2
    assert "differ only in their extension" in capsys.readouterr().err


def test_exports_are_named_once_each_and_written_below_the_results(surgery, model, tmp_path):
    pytest.importorskip("pycocotools")
    words = ["--export", "coco", "--export", "cvat", "--nifti", "--export", "nifti", "--masks", "none"]
    assert main(["segment", "surgery.mp4", "--model", str(model()), "--threads", "1", *words]) == 0
    out = tmp_path / "surgery-segmented"
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"coco", "cvat", "nifti"}
    content = json.loads((out / "coco" / "annotations.json").read_text())
    assert [category["name"] for category in content["categories"]] == list(PARTS[1:])
    names = [f"frame_{number:06d}.png" for number in range(5)]
    assert [image["file_name"] for image in content["images"]] == names
    assert sorted(path.name for path in (out / "coco" / "images").iterdir()) == names
