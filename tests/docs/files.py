"""What the documents take for granted: data sets below /data, a video, a model. All of it is tiny."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import torch

from shared_components.core.bundle import load_bundle
from shared_components.core.task import checkpoint_header, make_task
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import save_weights
from shared_components.scenes.site import write_site
from tests.data.volumes import write_labels
from tests.narrow import SEED

HEIGHT, WIDTH = 64, 64  # the smallest that is rendered
SITES = ("site-1", "site-2", "site-3", "hospital-a", "hospital-b")
RENDERED = {
    "endovis2017": 4, "endovis2018": 4, "sar_rarp50": 4, "scared": 3, "grasp": 5, "sisvse": 4, "autolaparo": 4,
    "stereomis": 3,
}  # videos  # fmt: skip
SAR_VIDEOS = ("video_1", "video_11", "video_21", "video_22")
CASES = ("CASE001", "CASE002", "CASE021", "CASE041", "CASE047")
SETS = ("manual_syn", "domain_random_syn", "real_train_1", "real_val_1")
KEYFRAMES = ("dataset_1/keyframe_1", "dataset_1/keyframe_2", "dataset_2/keyframe_1")


def write_data(folder: Path) -> None:
    """Write what the documents call /data."""
    for number, (layout, videos) in enumerate(RENDERED.items()):
        task = "depth" if layout in ("scared", "stereomis") else "segmentation"
        made = folder / "made" / layout
        write_site(
            made, look="rose", seed=number, layout=layout, task=task, videos={"train": videos}, frames_per_video=3,
            height=HEIGHT, width=WIDTH,
        )  # fmt: skip
        shutil.move(made / layout, folder / layout)
    _as_published(folder)
    _name_cases((folder / "grasp").rename(folder / "GraSP_30fps"))
    _name_sets((folder / "sisvse").rename(folder / "miccai2022_sisvse_dataset"))
    _write_rigid(folder / "endovis2015_rigid")
    _write_pack(folder / "robotics_site_npy" / "site1")
    shutil.rmtree(folder / "made")
    _write_sites(folder)
    _write_own(folder / "ours")
    _write_annotated(folder / "annotated")
    (folder / "hospital-c").mkdir()
    (folder / "my-vectors.safetensors").touch()
    (folder / "clip-vit-base-patch32").mkdir()


def write_model_and_video(folder: Path) -> None:
    """Write model.safetensors, surgfed.safetensors, which follows boxes, and surgery.mp4."""
    notes = {"height": str(HEIGHT), "width": str(WIDTH), "bundle": "pvt_fpn"}
    torch.manual_seed(SEED)
    save_weights(folder / "model.safetensors", build_network(load_bundle("pvt_fpn").network).state_dict(), notes)
    numbers = {"frames": 2, "interval": 0.2, "targets_of": "all", "prompts": "first"}
    task = make_task("segmentation", numbers, classes=("background", "shaft", "wrist", "clasper"))
    follows = build_network(load_bundle("surgfed").network)
    notes = checkpoint_header("surgfed", "surgfed", task, numbers, size=(HEIGHT, WIDTH))
    save_weights(folder / "surgfed.safetensors", follows.state_dict(), notes)
    _write_video(folder / "surgery.mp4", "mp4v", 3)


def _write_sites(folder: Path) -> None:
    for number, name in enumerate(SITES):
        write_site(
            folder / name, look="rose", seed=number, videos={"train": 1, "validation": 1, "test": 1},
            frames_per_video=2, height=HEIGHT, width=WIDTH,
        )  # fmt: skip
    one_video = {"layout": "sisvse", "videos": {"train": 1}, "frames_per_video": 2, "height": HEIGHT, "width": WIDTH}
    write_site(folder / "simulated", look="simulated", seed=9, **one_video)
    for name, site in zip(("a", "b", "d"), SITES, strict=False):
        shutil.copytree(folder / site, folder / "sites" / f"hospital-{name}")


def _write_own(folder: Path) -> None:
    """Write a hospital's own frames, masks and label volumes, of names and values that no public data set has."""
    for number, video in enumerate(("monday", "tuesday", "friday")):
        masks = []
        for index in range(3):
            mask = np.zeros((HEIGHT, WIDTH), np.uint8)
            mask[10 + index : 30, 5:20], mask[20:40, 30 + number : 50], mask[:4] = 40, 200, 255
            noise = np.random.default_rng(10 * number + index).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
            for name, picture in (("frames", noise), ("masks", mask)):
                path = folder / video / name / f"{index:03d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                cv2.imwrite(str(path), picture)
            masks.append(np.select([mask == 40, mask == 200], [1, 2]).astype(np.uint8))
        write_labels(folder / f"{video}.nii.gz", masks)


def _write_annotated(folder: Path) -> None:
    """Write frames of three videos, and a COCO file with a rectangle in each."""
    images, annotations = [], []
    for number, video in enumerate(("monday", "tuesday", "friday", "monday", "tuesday", "friday")):
        name = f"{video}/{number}.png"
        (folder / "images" / video).mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
        cv2.imwrite(str(folder / "images" / name), noise)
        images.append({"id": number, "file_name": name, "height": HEIGHT, "width": WIDTH})
        corners = [10, 10, 40, 10, 40, 30, 10, 30]
        annotations.append({"image_id": number, "category_id": 1, "segmentation": [corners]})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "grasper"}]}
    (folder / "coco.json").write_text(json.dumps(content))


def _as_published(folder: Path) -> None:
    """Name the videos of SAR-RARP50 and SCARED as the document does; pack the former's and a part of StereoMIS's."""
    root = folder / "sar_rarp50"
    for old, name in zip(sorted(root.glob("video_*")), reversed(SAR_VIDEOS), strict=True):
        video = old.rename(root / f"new-{name}")
        shutil.rmtree(video / "rgb")
        last = max(int(path.stem) for path in (video / "segmentation").iterdir())
        _write_video(video / "video_left.avi", "MJPG", last + 1)
    for video in root.glob("new-*"):
        video.rename(root / video.name.removeprefix("new-"))
    root = folder / "scared"
    found = sorted(path.parent.relative_to(root) for path in root.glob("*/*/data"))
    for number, old in enumerate(found):
        (root / old).rename(folder / "made" / f"keyframe-{number}")
    for number, name in enumerate(KEYFRAMES):
        (root / name).parent.mkdir(exist_ok=True)
        (folder / "made" / f"keyframe-{number}").rename(root / name)
    eye = "fc_x=60\nfc_y=60\ncc_x=32\ncc_y=16\nres_x=64\nres_y=32\n" + "".join(f"kc_{n}=0\n" for n in range(8))
    pose = "".join(f"R_{n}={int(n % 4 == 0)}\n" for n in range(9)) + "T_0=-4\nT_1=0\nT_2=0\n"
    sequence = folder / "stereomis" / "P1"
    (sequence / "StereoCalibration.ini").write_text(f"[StereoLeft]\n{eye}[StereoRight]\n{eye}{pose}")
    _write_video(sequence / "P1.mp4", "mp4v", 2)


def _name_cases(root: Path) -> None:
    """Name the videos of GraSP as published."""
    for part in ("frames", "annotations/segmentations"):
        for old, name in zip(sorted((root / part).iterdir()), CASES, strict=True):
            old.rename(root / part / name)


def _name_sets(root: Path) -> None:
    """Name the sets of Sisvse as published, with the images of the real ones in one folder."""
    for old, name in zip(sorted((root / "semantic_masks").iterdir()), SETS, strict=True):
        folder = root / "images" / ("real" if name.startswith("real") else name)
        folder.mkdir(exist_ok=True)
        for image in (root / "images" / old.name).iterdir():
            image.rename(folder / f"{name}_{image.name}")
        (root / "images" / old.name).rmdir()
        for mask in old.iterdir():
            mask.rename(mask.with_name(f"{name}_{mask.name}"))
        old.rename(old.with_name(name))


def _write_video(path: Path, codec: str, frames: int) -> None:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), 25, (WIDTH, HEIGHT))
    for number in range(frames):
        writer.write(np.full((HEIGHT, WIDTH, 3), 64 + number, np.uint8))  # of black, no random network learns
    writer.release()


def _write_rigid(root: Path) -> None:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[4:8], mask[8:12] = 160, 70
    for video in ("OP1", "OP2", "OP3"):
        for folder in ("Raw", "Masks"):
            (root / video / folder).mkdir(parents=True)
        for number in range(1, 41):
            cv2.imwrite(str(root / video / "Raw" / f"img_{number:02d}_raw.png"), np.dstack([mask] * 3))
            cv2.imwrite(str(root / video / "Masks" / f"img_{number:02d}_class.png"), mask)


def _write_pack(root: Path) -> None:
    for split, video in (("train", "video1"), ("train", "video2"), ("test", "video9")):
        for folder, shape in (("image", (HEIGHT, WIDTH, 3)), ("mask", (HEIGHT, WIDTH))):
            (root / split / folder).mkdir(parents=True, exist_ok=True)
            np.save(root / split / folder / f"{video}frame000.npy", np.ones(shape, np.uint8))
