"""Tiny datasets in the official layouts, drawn by hand; real frames from the folder in SURGFL_REAL_DATA."""

import json
from argparse import ArgumentParser
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType

import av
import cv2
import numpy as np
import pytest
import yaml

from shared_components.data.files.images import frame_number
from shared_components.data.readers import find_reader
from shared_components.data.samples import Sample, SampleSpec

H, W = 64, 80
FOUR = SampleSpec(frames=4, interval=0.2)
COLOURS_2018 = {0: (0, 0, 0), 1: (0, 255, 0), 2: (125, 255, 12), 3: (0, 255, 255)}
SAR_IDS = {0: 0, 1: 3, 2: 2, 3: 1}
FINEST_JPEG = [
    cv2.IMWRITE_JPEG_QUALITY, 100, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
]  # fmt: skip
GRASP_CASES = (1, 2, 3, 4, 7, 14, 15, 21, 41, 47, 50, 51, 53)
SISVSE_SETS = (
    "domain_random_syn", "manual_syn", "real_train_1", "real_train_2", "real_train_3", "real_val_1", "real_val_2",
    "real_val_3", "sean_spade_translation/sean/domain_random_syn", "sean_spade_translation/sean/manual_syn",
    "sean_spade_translation/spade/domain_random_syn", "sean_spade_translation/spade/manual_syn",
)  # fmt: skip


def canonical_mask(index: int) -> np.ndarray:
    """Draw a shaft, a wrist and a clasper side by side, further right in each frame; uint8 (H, W)."""
    mask = np.zeros((H, W), dtype=np.uint8)
    for part in (1, 2, 3):
        mask[20 + part : 40, 10 * part + index : 10 * part + index + 10] = part
    return mask


def frame_image(index: int) -> np.ndarray:
    """Draw an RGB frame whose red channel shows the part, uint8 (H, W, 3)."""
    image = np.full((H, W, 3), 40, dtype=np.uint8)
    image[:, :, 0] = canonical_mask(index) * 60
    image[:, :, 2] = 100 + index
    return image


def write(path: Path, array: np.ndarray) -> None:
    """Write an array as .npy, or as an image; RGB(A) in its own order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, array)
        return
    if array.ndim == 3:
        array = cv2.cvtColor(array, cv2.COLOR_RGBA2BGRA if array.shape[2] == 4 else cv2.COLOR_RGB2BGR)
    assert cv2.imwrite(str(path), array, FINEST_JPEG if path.suffix == ".jpg" else [])


def assert_frame(image: np.ndarray, index: int, path: Path) -> None:
    """Assert that an image is `frame_image(index)`: exactly, or up to JPEG artefacts."""
    np.testing.assert_allclose(image.astype(int), frame_image(index), atol=3 if path.suffix == ".jpg" else 0)


def own_spec(dataset: str) -> SampleSpec:
    """Ask for the targets that a dataset has."""
    return SampleSpec(targets=find_reader(dataset).TARGETS)


def numbers(sample: Sample) -> list[int]:
    """Return the numbers in the names of a clip's images."""
    return [frame_number(path) for path in sample.images]


def encode(path: Path, images: list[np.ndarray], codec: str = "mpeg4", *, rate: int = 25, **options: object) -> Path:
    """Write RGB images, uint8 (H, W, 3), as a video, with options of FFmpeg's encoder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options={key: str(value) for key, value in options.items()})
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.height, stream.width = images[0].shape[:2]
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def run_command(command: ModuleType, *words: object) -> int:
    parser = ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


def write_yaml(path: Path, config: dict[str, object]) -> Path:
    """Write a site.yaml without the keys whose value is None."""
    lines = {key: value for key, value in config.items() if value is not None}
    path.write_text(yaml.safe_dump(lines), encoding="utf-8")
    return path


def write_endovis2017(root: Path, videos: int, frames: int) -> list[str]:
    """Write the left half of every mask as one instrument and the right half as another."""
    names = [f"instrument_dataset_{video}" for video in range(1, videos + 1)]
    for name, index in product(names, range(frames)):
        left = canonical_mask(index) * 10
        right = left.copy()
        left[:, W // 2 :], right[:, : W // 2] = 0, 0
        write(root / name / f"left_frames/frame{index:03d}.png", frame_image(index))
        write(root / name / f"ground_truth/Left_Prograsp_Forceps_labels/frame{index:03d}.png", left)
        write(root / name / f"ground_truth/Maryland_Bipolar_Forceps_labels/frame{index:03d}.png", right)
        write(root / name / f"ground_truth/Other_labels/frame{index:03d}.png", np.full_like(left, 40))
    return names


def write_endovis2018(root: Path, videos: int, frames: int) -> list[str]:
    """Write colour-coded labels, RGB in odd sequences and RGBA in even ones."""
    for video, index in product(range(1, videos + 1), range(frames)):
        folder = root / f"miccai_challenge_release_{1 + video % 2}" / f"seq_{video}"
        colours = np.array(list(COLOURS_2018.values()), dtype=np.uint8)[canonical_mask(index)]
        if video % 2 == 0:
            colours = np.dstack([colours, np.full((H, W), 255, dtype=np.uint8)])
        write(folder / f"left_frames/frame{index:03d}.png", frame_image(index))
        write(folder / f"labels/frame{index:03d}.png", colours)
    return [f"seq_{video}" for video in range(1, videos + 1)]


def write_sar_rarp50(root: Path, videos: int, frames: int) -> list[str]:
    """Write frames at 10 Hz and masks at 1 Hz, single-channel in odd videos, three-channel in even videos."""
    for video, index in product(range(1, videos + 1), range(frames)):
        folder = root / "train1" / f"video_{video}"
        ids = np.array(list(SAR_IDS.values()), dtype=np.uint8)[canonical_mask(index)]
        write(folder / f"segmentation/{60 * index:09d}.png", np.dstack([ids] * 3) if video % 2 == 0 else ids)
        write(folder / f"rgb/{60 * index:09d}.png", frame_image(index))
        write(folder / f"rgb/{60 * index + 6:09d}.png", frame_image(index))
    return [f"video_{video}" for video in range(1, videos + 1)]


def write_endovis2015_rigid(root: Path, videos: int, frames: int) -> list[str]:
    """Write wrist and clasper as manipulator, in Masks/ in odd surgeries and in Masks_class/ in even ones."""
    for video, index in product(range(1, videos + 1), range(frames)):
        masks = "Masks" if video % 2 else "Masks_class"
        classes = np.array([0, 160, 70, 70], dtype=np.uint8)[canonical_mask(index)]
        write(root / f"OP{video}/Raw/img_{index + 1:02d}_raw.png", frame_image(index))
        write(root / f"OP{video}/{masks}/img_{index + 1:02d}_class.png", classes)
        write(root / f"OP{video}/{masks}/img_{index + 1:02d}_instrument.png", classes // 2)
    return [f"OP{video}" for video in range(1, videos + 1)]


def write_pfedsis_npy(root: Path, videos: int, frames: int) -> list[str]:
    """Write all videos but the last to train/, and the last to test/ with masks of twice the size."""
    names = [f"{'test' if video == videos else 'train'}/video{video}" for video in range(1, videos + 1)]
    for name, index in product(names, range(frames)):
        folder, video = name.split("/")
        size = 2 if folder == "test" else 1
        mask = canonical_mask(index).repeat(size, axis=0).repeat(size, axis=1)
        write(root / folder / "image" / f"{video}frame{index:03d}.npy", frame_image(index))
        write(root / folder / "mask" / f"{video}frame{index:03d}.npy", mask)
    return names


def depth_map(index: int) -> np.ndarray:
    """Draw depth in 256ths of a millimetre: 40 mm, 10 less on each further part, unknown in a corner."""
    depth = (40 - 10 * np.minimum(canonical_mask(index), 3).astype(np.uint16)) * 256 + index
    depth[:4, :4] = 0
    return depth.astype(np.uint16)


def write_scared(root: Path, videos: int, frames: int) -> list[str]:
    """Write two keyframes per dataset."""
    names = [f"dataset_{1 + video // 2}/keyframe_{1 + video % 2}" for video in range(videos)]
    for name, index in product(names, range(frames)):
        write(root / name / f"data/left_undistorted/{index:06d}.png", frame_image(index))
        write(root / name / f"data/depthmap_undistorted/{index:06d}.png", depth_map(index))
    return names


def write_sisvse(root: Path, videos: int, frames: int) -> list[str]:
    """Write the official sets in their order, all real images to one folder, and other files of the download."""
    for video, index in product(SISVSE_SETS[:videos], range(frames)):
        real = video.startswith("real_")
        name = f"{'R001_' if real else ''}{Path(video).name}_2021-09-27-14-20-30_{index}"
        ids = np.array([24, 5, 4, 3], dtype=np.uint8)[canonical_mask(index)]  # a liver, and Maryland's parts
        write(root / "images" / ("real" if real else video) / f"{name}.jpg", frame_image(index))
        write(root / "semantic_masks" / video / f"{name}.png", ids)
        write(root / "raw_syn_masks" / video / f"{name}.png", np.dstack([ids * 7] * 3))
    (root / "info.txt").write_text("Sisvse")
    return list(SISVSE_SETS[:videos])


def write_grasp(root: Path, videos: int, frames: int) -> list[str]:
    """Write a frame every 35 s as GraSP_30fps does, cases before 21 counted at 45 a second, and other files."""
    listed: list[dict[str, object]] = []
    names = [f"CASE{case:03d}" for case in GRASP_CASES[:videos]]
    for case, video in zip(GRASP_CASES, names, strict=False):
        for index in range(frames):
            count = round(1.5 * (45 + 1050 * index)) if case < 21 else 15 + 1050 * index  # see its README
            ids = np.where(canonical_mask(index) > 0, 1 + index % 7, 0).astype(np.uint8)
            write(root / f"frames/{video}/{count:09d}.jpg", frame_image(index))
            write(root / f"annotations/segmentations/{video}/{count:09d}.png", ids)
            listed.append({"id": len(listed), "file_name": f"{video}/{count:09d}.jpg", "width": W, "height": H})
    for split in ("train", "test", "fold1"):
        content = {"images": listed if split == "train" else [], "annotations": [], "categories": []}
        (root / f"annotations/grasp_short-term_{split}.json").write_text(json.dumps(content))
    for folder in ("frames", "annotations"):
        (root / folder / "README.txt").write_text("GraSP")
    return names


def write_autolaparo(root: Path, videos: int, frames: int) -> list[str]:
    """Write clips of a root with or without AutoLaparo_Task3: tool 1 and a uterus, masks of 1 or 3 channels."""
    base = root / "AutoLaparo_Task3" if frames % 2 else root
    for video, index in product(range(1, videos + 1), range(frames)):
        ids = np.array([0, 40, 20, 180], dtype=np.uint8)[canonical_mask(index)]
        write(base / f"imgs/{video:03d}{index:03d}.jpg", frame_image(index))
        write(base / f"masks/{video:03d}{index:03d}.png", np.dstack([ids] * 3) if video % 2 == 0 else ids)
    (base / "imgs/readme.jpg").write_text("no frame")
    return [f"{video:03d}" for video in range(1, videos + 1)]


def write_cholecseg8k(root: Path, videos: int, frames: int) -> list[str]:
    """Write clips of two frames: grasper, L-hook and ligament; grey masks in odd videos, RGBA colours in even ones."""
    grey = np.array([50, 31, 32, 5], dtype=np.uint8)
    colours = np.array([(127, 127, 127, 255), (170, 255, 0, 255), (169, 255, 184, 255), (111, 74, 0, 255)], np.uint8)
    names = [f"video{video:02d}" for video in range(1, videos + 1)]
    for (place, name), index in product(enumerate(names), range(frames)):
        stem, mask = f"{name}/{name}_{80 + index // 2 * 2:05d}/frame_{80 + index}_endo", canonical_mask(index)
        write(root / f"{stem}.png", frame_image(index))
        write(root / f"{stem}_mask.png", mask)
        if place % 2:
            write(root / f"{stem}_color_mask.png", colours[mask])
        else:
            write(root / f"{stem}_watershed_mask.png", np.dstack([grey[mask]] * 3))
    return names


def write_stereomis(root: Path, videos: int, frames: int) -> list[str]:
    """Write the output of `surgfl unpack-stereomis` and a part of the published files."""
    names = [f"P{1 + video}" for video in range(videos)]
    for name in names:
        for index in range(frames):
            write(root / name / f"rectified/left/{25 * index:06d}.png", frame_image(index))
            write(root / name / f"rectified/depth/{25 * index:06d}.png", depth_map(index))
            write(root / name / f"masks/{25 * index:06d}l.png", canonical_mask(index))
        (root / name / "groundtruth.txt").write_text("0 0 0 0 0 0 0 1")
    return names


WRITERS: dict[str, Callable[[Path, int, int], list[str]]] = {
    writer.__name__.removeprefix("write_"): writer
    for writer in (
        write_autolaparo, write_cholecseg8k, write_endovis2015_rigid, write_endovis2017, write_endovis2018, write_grasp,
        write_pfedsis_npy, write_sar_rarp50, write_scared, write_sisvse, write_stereomis,
    )
}  # fmt: skip


@pytest.fixture
def packed_video(tmp_path: Path) -> Path:
    """Write a published folder of SAR-RARP50: 126 frames as bright as twice their number, masks at 0, 60 and 120."""
    folder = tmp_path / "video_1"
    for index in range(3):
        write(folder / f"segmentation/{60 * index:09d}.png", canonical_mask(index))
    video = cv2.VideoWriter(str(folder / "video_left.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 60, (W, H))
    for number in range(126):
        video.write(np.full((H, W, 3), 2 * number, dtype=np.uint8))
    video.release()
    return folder


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[..., Path]:
    """Write a site of three videos (train, validation, test); return its site.yaml. None omits a key."""

    def make(dataset: str = "endovis2017", *, frames: int = 4, **changes: object) -> Path:
        root = tmp_path / "data"
        names = WRITERS[dataset](root, 3, frames)
        split = {key: [name] for key, name in zip(("train", "validation", "test"), names, strict=True)}
        config = {"name": "hospital-a", "dataset": dataset, "root": "data", "split": split, **changes}
        return write_yaml(tmp_path / "site.yaml", config)

    return make
