"""Write the frames of a video in the layout of a public data set.

Each writer takes the data set's root, the video's name and its shots. It writes every frame as it passes, and yields
the frame with its file stem. Images and masks are lossless PNG, or JPEG of high quality if the data set has JPEG.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from shared_components.common.atomic import write_bytes
from shared_components.common.drawing.pictures import encoded
from shared_components.data.files.classes import CLASS_MAPS
from shared_components.data.files.images import depth_values
from shared_components.data.files.triplets import INSTRUMENTS, TARGETS, TRIPLETS, VERBS
from shared_components.data.readers.cholecseg8k import VALUES
from shared_components.data.readers.endovis2018 import LABEL_COLOURS
from shared_components.scenes import toolbox
from shared_components.scenes.operations import PHASES
from shared_components.scenes.scene import SceneFrame

Array = np.ndarray

_FAST_PNG = (cv2.IMWRITE_PNG_COMPRESSION, 1)
_JPEG = (
    cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
)  # fmt: skip
# label of background, shaft, wrist and clasper (our 0 to 3) in each layout
_ENDOVIS2017_IDS = np.array([0, 10, 20, 30], np.uint8)
_SAR_RARP50_IDS = np.array([0, 3, 2, 1], np.uint8)
_SISVSE_IDS = np.array([0, 8, 7, 6], np.uint8)  # body, wrist and head of Cadiere forceps, for any instrument
_ENDOVIS2017_PARTS = {"Shaft": 10, "Wrist": 20, "Claspers": 30, "Other": 40}
# in the order of the data set's list; its numbering of the kinds is not published
_GRASP_INSTRUMENTS = (
    "Bipolar_Forceps", "Prograsp_Forceps", "Large_Needle_Driver", "Monopolar_Curved_Scissors", "Suction",
    "Clip_Applier", "Grasper",
)  # fmt: skip
_SCENE_PARTS = np.array([0, *map(CLASS_MAPS["scene"].index, CLASS_MAPS["parts"][1:])], np.uint8)
# AutoLaparo has two graspers, a sealer and a hook: number of each rendered kind, by the end of its name
_TOOL_NUMBERS = {
    toolbox.PROGRASP: 1, toolbox.GRASPER: 1, toolbox.NEEDLE: 2, toolbox.CLIPS: 2, toolbox.STAPLER: 2,
    toolbox.MARYLAND: 3, toolbox.SCISSORS: 3, toolbox.HOOK: 4, toolbox.SUCTION: 4,
}  # fmt: skip
# classes of an operation's targets; CholecSeg8k has no artery, so the cystic artery becomes its vein
_CHOLECSEG8K = np.array([0, *map(CLASS_MAPS["cholecseg8k"].index, (
    "liver", "gallbladder", "fat", "gastrointestinal tract", "cystic duct", "hepatic vein", "blood",
))], np.uint8)  # fmt: skip
_CHOLECSEG8K_TOOLS = {kind: CLASS_MAPS["cholecseg8k"].index(kind) for kind in ("L-hook", "grasper")}
_CHOLECSEG8K_GREYS = np.array(sorted(VALUES, key=VALUES.__getitem__), np.uint8)
_AUTOLAPARO_FRAMES = 1000  # frames per clip, because numbers have three digits
_GESTURE_STEP = 6  # frame numbers between two lines of SAR-RARP50's actions: 10 Hz of 60 Hz


@dataclass(frozen=True)
class Shot:
    """A frame to write, with its number in the video; `labelled` is whether its labels are written."""

    number: int
    frame: SceneFrame
    labelled: bool = True


Written = Iterator[tuple[SceneFrame, str]]
"""Written frames, each with its file stem."""
Writer = Callable[[Path, str, Iterable[Shot]], Written]


def write_image(path: Path, image: Array) -> None:
    """Write a grey or RGB image as fast PNG or as JPEG, by the path's suffix; OSError names the file."""
    options: Sequence[int] = _JPEG if path.suffix == ".jpg" else _FAST_PNG
    write_bytes(path, encoded(np.ascontiguousarray(image), path.suffix, options))


def _write_text(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), "utf-8")


def _write_pairs(
    shots: Iterable[Shot], stem: str, images: Path, targets: Path, target: Callable[[SceneFrame], Array], end: str = ""
) -> Written:
    """Write every frame to `images` and its target to `targets`; `stem` formats the frame's number and suffix.

    The name of the target is the image's name with `end`.
    """
    for shot in shots:
        image = images / stem.format(shot.number)
        write_image(image, shot.frame.image)
        if shot.labelled:
            write_image(targets / f"{image.stem}{end}.png", target(shot.frame))
        yield shot.frame, image.stem


def pair_writer(stem: str, images: str, targets: str, target: Callable[[SceneFrame], Array], end: str = "") -> Writer:
    """Return a writer of images and targets; the names of their folders contain {0} for the video's name."""

    def write(root: Path, video: str, shots: Iterable[Shot]) -> Written:
        return _write_pairs(shots, stem, root / images.format(video), root / targets.format(video), target, end)

    return write


def depth_of(frame: SceneFrame) -> Array:
    """Return a frame's depth as files contain it."""
    return depth_values(frame.depth)


def write_endovis2017(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """Write instrument_dataset_N/left_frames/frameNNN.png and ground_truth/<Instrument>_labels/frameNNN.png."""
    truth = root / video / "ground_truth"
    stems: list[str] = []
    stems_by_tool: dict[str, set[str]] = {}
    blank = np.zeros((1, 1), np.uint8)
    for shot in shots:
        frame, stem = shot.frame, f"frame{shot.number:03d}"
        write_image(root / video / "left_frames" / f"{stem}.png", frame.image)
        if shot.labelled:
            ids = _ENDOVIS2017_IDS[frame.parts]
            for number, tool in enumerate(frame.tools, start=1):
                write_image(truth / f"{tool}_labels" / f"{stem}.png", np.where(frame.instances == number, ids, 0))
                stems_by_tool.setdefault(tool, set()).add(stem)
            stems.append(stem)
            blank = np.zeros_like(frame.parts)
        yield frame, stem
    if stems:
        _write_text(root / "parts_mapping.json", [json.dumps(_ENDOVIS2017_PARTS, indent=2), "\n"])
    # as in the challenge, every instrument's folder has a mask for every frame
    for tool in sorted(stems_by_tool) or ["Left_Large_Needle_Driver"]:
        for stem in stems:
            if stem not in stems_by_tool.get(tool, ()):
                write_image(truth / f"{tool}_labels" / f"{stem}.png", blank)


def scene_ids(frame: SceneFrame) -> Array:
    """Return a frame's label (H, W) in the classes `scene`; its objects are the classes from the kidney on."""
    things = np.where(frame.things > 0, frame.things + np.uint8(len(_SCENE_PARTS) - 1), np.uint8(0))
    return np.where(frame.parts > 0, _SCENE_PARTS[frame.parts], things)


def write_endovis2018(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """Write seq_N/left_frames/frameNNN.png, seq_N/labels/frameNNN.png and labels.json with the labels' colours."""
    colours = np.array(list(LABEL_COLOURS.values()), np.uint8)
    images, labels = root / video / "left_frames", root / video / "labels"
    yield from _write_pairs(shots, "frame{:03d}.png", images, labels, lambda frame: colours[scene_ids(frame)])
    if labels.is_dir():
        classes = [{"name": n, "color": list(c), "classid": i} for i, (n, c) in enumerate(LABEL_COLOURS.items())]
        _write_text(root / "labels.json", [json.dumps(classes, indent=2), "\n"])


def write_sar_rarp50(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """Write video_N/{rgb,segmentation}/%09d.png, labelled at 1 Hz, and video_N/action_discrete.txt at 10 Hz."""
    lines = []
    for shot in shots:
        stem = f"{shot.number:09d}"
        write_image(root / video / "rgb" / f"{stem}.png", shot.frame.image)
        if shot.labelled:
            write_image(root / video / "segmentation" / f"{stem}.png", _SAR_RARP50_IDS[shot.frame.parts])
            second = range(shot.number, shot.number + 60, _GESTURE_STEP)
            lines += [f"{number},{shot.frame.gesture}\n" for number in second]
        yield shot.frame, stem
    if lines:
        _write_text(root / video / "action_discrete.txt", lines)


def sisvse_ids(frame: SceneFrame) -> Array:
    """Return a frame's label (H, W) as Sisvse contains it."""
    return _SISVSE_IDS[frame.parts]


def grasp_ids(frame: SceneFrame) -> Array:
    """Return the kinds of instruments (H, W); a kind that GraSP lacks becomes a laparoscopic grasper."""
    last = len(_GRASP_INSTRUMENTS)
    kinds = [next((n for n, kind in enumerate(_GRASP_INSTRUMENTS, 1) if kind in tool), last) for tool in frame.tools]
    return np.array([0, *kinds], np.uint8)[frame.instances]


def hysterectomy_ids(frame: SceneFrame) -> Array:
    """Return a frame's label (H, W) in the classes `hysterectomy`; its only object is the uterus.

    Kinds without a counterpart in AutoLaparo, such as a snare, become graspers.
    """
    numbers = [next((n for kind, n in _TOOL_NUMBERS.items() if tool.endswith(kind)), 1) for tool in frame.tools]
    manipulators = np.array([0, *(2 * number - 1 for number in numbers)], np.uint8)[frame.instances]
    uterus = np.where(frame.things > 0, np.uint8(9), np.uint8(0))
    return np.where(frame.parts > 0, manipulators + (frame.parts == 1), uterus).astype(np.uint8)


def write_autolaparo(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """Write AutoLaparo_Task3/{imgs,masks}/<clip><frame>, three digits each."""

    def limited() -> Iterator[Shot]:
        for shot in shots:
            if shot.number >= _AUTOLAPARO_FRAMES:
                most = f"at most {_AUTOLAPARO_FRAMES} frames"
                raise ValueError(f"a clip of autolaparo has {most}; ask for fewer, or longer apart")
            yield shot

    folders = (root / "AutoLaparo_Task3" / "imgs", root / "AutoLaparo_Task3" / "masks")
    return _write_pairs(limited(), video + "{:03d}.jpg", *folders, lambda frame: 20 * hysterectomy_ids(frame))


def cholecseg8k_ids(frame: SceneFrame) -> Array:
    """Return a cholecystectomy's label (H, W) in the classes `cholecseg8k`; all tools except the hook are graspers."""
    kinds = ("L-hook" if tool.endswith(toolbox.HOOK) else "grasper" for tool in frame.tools)
    tools = np.array([0, *(_CHOLECSEG8K_TOOLS[kind] for kind in kinds)], np.uint8)[frame.instances]
    return np.where(frame.parts > 0, tools, _CHOLECSEG8K[frame.things])


def watershed_mask(frame: SceneFrame) -> Array:
    """Return a cholecystectomy's label (H, W) as CholecSeg8k's grey values."""
    return _CHOLECSEG8K_GREYS[cholecseg8k_ids(frame)]


def write_cholect45(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """Write data/VIDxx/%06d.png at 1 frame a second; {triplet,instrument,verb,target,phase}/VIDxx.txt; dict/*.txt.

    A line of labels is a frame's number from 0 and a 0 or 1 per class.
    """
    rows: dict[str, list[str]] = {name: [] for name in ("triplet", "instrument", "verb", "target", "phase")}
    for shot in shots:
        stem = f"{shot.number:06d}"
        write_image(root / "data" / video / f"{stem}.png", shot.frame.image)
        if shot.labelled:
            for name, (ids, count) in _frame_labels(shot.frame).items():
                rows[name].append(",".join([str(shot.number), *(str(int(c in ids)) for c in range(count))]) + "\n")
        yield shot.frame, stem
    if rows["triplet"]:
        for name, lines in rows.items():
            _write_text(root / name / f"{video}.txt", lines)
        _write_label_names(root / "dict")


def _frame_labels(frame: SceneFrame) -> dict[str, tuple[set[int], int]]:
    """Return a frame's labels and the number of classes, by kind of label."""
    parts = list(zip(*(TRIPLETS[number] for number in frame.triplets), strict=True)) or [()] * 3
    classes = {"instrument": INSTRUMENTS, "verb": VERBS, "target": TARGETS}
    labels = {name: (set(ids), len(classes[name])) for name, ids in zip(classes, parts, strict=True)}
    return {"triplet": (set(frame.triplets), len(TRIPLETS)), **labels, "phase": ({frame.phase}, len(PHASES))}


def _write_label_names(folder: Path) -> None:
    """Write the names of all labels, and the components of each triplet."""
    triplets = [f"{INSTRUMENTS[i]},{VERBS[v]},{TARGETS[t]}" for i, v, t in TRIPLETS]
    lists: dict[str, Sequence[str]] = {
        "triplet": triplets, "instrument": INSTRUMENTS, "verb": VERBS, "target": TARGETS, "phase": PHASES,
    }  # fmt: skip
    for kind, names in lists.items():
        _write_text(folder / f"{kind}.txt", [f"{number}:{name}\n" for number, name in enumerate(names)])
    maps = [f"{n},{i},{v},{t},{10 * i + v},{15 * i + t}\n" for n, (i, v, t) in enumerate(TRIPLETS)]
    _write_text(folder / "maps.txt", ["# IVT, I, V, T, IV, IT\n", *maps])


def write_appendix300(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """Write videos/<video>/%06d.jpg at 2 frames a second, and grades.csv with video and grade.

    This layout is our own; the layout of the published archive is not known.
    """
    grade = None
    for shot in shots:
        stem = f"{shot.number:06d}"
        write_image(root / "videos" / video / f"{stem}.jpg", shot.frame.image)
        grade = shot.frame.grade if shot.labelled else grade
        yield shot.frame, stem
    if grade is not None:
        file = root / "grades.csv"
        _write_text(file, [file.read_text("utf-8") if file.exists() else "video,grade\n", f"{video},{grade}\n"])
