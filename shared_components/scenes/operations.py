"""Operations with labels of frames and videos: a cholecystectomy's phases and triplets, an appendicitis' grade.

Their tissue has a separate random stream, so that other renderings keep their bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.random import Generator

from shared_components.data.files.classes import LABELS
from shared_components.data.files.triplets import INSTRUMENTS, TARGETS, TRIPLETS, VERBS
from shared_components.scenes import toolbox
from shared_components.scenes.look import RGB, Look, Texture
from shared_components.scenes.motion import Pose
from shared_components.scenes.noise import linear, step
from shared_components.scenes.tissue import Array, Canvas, lay_organ, rod_profile

PHASES, GRADES = LABELS["cholecystectomy_phases"], LABELS["appendicitis_grades"]
"""Grades 0 to 5 of an appendicitis, as in FedSurg."""
_TARGETS = ("liver", "gallbladder", "omentum", "gut", "cystic_duct", "cystic_artery", "fluid")
_MOVING = 4.0  # minimum speed in mm per second of a moving instrument
_OPEN = 0.7  # open jaws above this grip do nothing
_OVER = 0.12  # minimum share of a tip's pixels over its target
_KINDS = {
    toolbox.GRASPER: "grasper", toolbox.MARYLAND: "bipolar", toolbox.HOOK: "hook", toolbox.SCISSORS: "scissors",
    toolbox.CLIPS: "clipper", toolbox.SUCTION: "irrigator",
}  # fmt: skip
# verbs of a still and of a moving instrument; the first verb that the data set has for the target counts
_VERBS = {
    "grasper": (("grasp", "retract"), ("retract", "grasp")),
    "bipolar": (("coagulate",), ("dissect", "coagulate")),
    "hook": (("coagulate", "dissect"), ("dissect", "coagulate")),
    "scissors": (("cut",), ("dissect", "cut")),
    "clipper": (("clip",), ("clip",)),
    "irrigator": (("aspirate", "retract", "irrigate"), ("irrigate", "dissect", "aspirate")),
}
Place = Sequence[float] | Array  # x and y in canvas widths
_IDS = {triplet: number for number, triplet in enumerate(TRIPLETS)}


@dataclass(frozen=True)
class Operation:
    """Technique (key of `toolbox.TECHNIQUES`), phases, tissue and labels of an operation."""

    technique: str
    phases: tuple[str, ...]
    # (random stream, look, grade, canvas, cover of a thread) -> uint8 (H, W): 0, or 1 + index into the targets
    lay: Callable[[Generator, Look, int, Canvas, Array], Array]
    targets: tuple[str, ...] = ()  # from the widest to the thinnest
    grades: tuple[str, ...] = ()


def triplet_of(pose: Pose, under: str) -> int:
    """Return the triplet of an instrument whose tip is over the target `under`; "" if the tip is not visible.

    The verb follows from the instrument's motion. Triplets that the data set lacks become "null".
    """
    name = _KINDS[pose.kind]
    instrument = INSTRUMENTS.index(name)
    null = _IDS[instrument, VERBS.index("null_verb"), TARGETS.index("null_target")]
    if not under or (pose.grip > _OPEN and toolbox.widest(pose.kind) > 0):
        return null
    wanted = ((instrument, VERBS.index(verb), TARGETS.index(under)) for verb in _VERBS[name][pose.speed >= _MOVING])
    return next((_IDS[triplet] for triplet in wanted if triplet in _IDS), null)


def under_tip(operation: Operation, ids: Array) -> str:
    """Return the thinnest target that part of a tip is over, from the ids (N,) below the tip, or ""."""
    counts = np.bincount(ids, minlength=len(operation.targets) + 1)[1:]
    over = np.flatnonzero(counts > _OVER * len(ids))
    return operation.targets[over[-1]] if over.size else ""


def _ellipse(canvas: Canvas, centre: Place, radii: Sequence[float], degrees: float) -> Array:
    """Return the distance (H, W) from an ellipse's middle: 1 at its outline; arguments in canvas widths."""
    angle = np.deg2rad(degrees)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    x, y = canvas.x - np.float32(centre[0]), canvas.y - np.float32(centre[1])
    return cv2.magnitude((x * cos + y * sin) / np.float32(radii[0]), (y * cos - x * sin) / np.float32(radii[1]))


def _toned(colour: RGB, look: Look, share: float = 0.25) -> Array:
    """Return a tissue's colour (3,) in linear light, mixed with `share` of the look's palette."""
    return (1 - share) * linear(colour) + share * linear(look.organs[0][0])


def _lay_gallbladder(rng: Generator, look: Look, grade: int, canvas: Canvas, thread: Array) -> Array:
    """Lay liver, fat, gut, gallbladder, its duct and artery, and sometimes a pool of fluid."""
    H, W = canvas.shape
    ratio = H / W
    there = np.ones((H, W), np.uint8)
    middle = np.array([0.5 + rng.uniform(-0.07, 0.07), (0.46 + rng.uniform(-0.05, 0.05)) * ratio])
    angle = rng.uniform(-35, 35)

    def lay(name: str, colour: RGB, kind: Texture, centre: Place, radii: Sequence[float], turn: float) -> None:
        cover = lay_organ(canvas, rng, _toned(colour, look), kind, _ellipse(canvas, centre, radii, turn))
        there[cover > 0.5] = 1 + _TARGETS.index(name)

    lay("liver", (128, 58, 46), "plain", (0.5, 0.3 * ratio), (0.9, 0.9), 0.0)
    lay("omentum", (232, 178, 92), "lobular", (rng.uniform(0.2, 0.45), 1.0 * ratio), (0.5, 0.26), rng.uniform(-15, 15))
    lay("gut", (224, 138, 126), "tubular", (rng.uniform(0.75, 0.95), 0.92 * ratio), (0.3, 0.2), rng.uniform(-30, 30))
    lay("gallbladder", (172, 156, 168), "membrane", middle, (0.23, 0.125), angle)
    neck = middle + 0.17 * np.array([np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))]) * rng.choice((-1.0, 1.0))
    end = np.array([0.5, 0.8 * ratio]) + rng.uniform(-0.1, 0.1, 2)
    for name, colour, wide, aside in (
        ("cystic_duct", (206, 196, 132), 0.034, -0.02), ("cystic_artery", (176, 40, 44), 0.02, 0.03),
    ):  # fmt: skip
        path = np.stack([neck, (neck + end) / 2 + rng.uniform(-0.03, 0.03, 2), end]) + aside
        there[_lay_tube(canvas, path, linear(colour), wide, 2.5) > 0.5] = 1 + _TARGETS.index(name)
    if rng.random() < 0.6:
        centre = rng.uniform((0.25, 0.6 * ratio), (0.75, 0.8 * ratio))
        pool = _ellipse(canvas, centre, (0.12, 0.05), rng.uniform(-20, 20))
        there[_cover(canvas, (104, 8, 10), step(1.0 - pool + 0.2 * canvas.fractal(rng, 7), 0.0, 0.2)) > 0.5] = 7
    return there


def _lay_tube(canvas: Canvas, points: Array, colour: Array, width: float, height: float) -> Array:
    """Lay a tube of `height` mm along the curve of three points (3, 2) in canvas widths; return its cover (H, W)."""
    t = np.linspace(0, 1, 40)[:, None]
    curve = (1 - t) ** 2 * points[0] + 2 * t * (1 - t) * points[1] + t**2 * points[2]
    cover, dome = rod_profile(canvas, curve, width)
    canvas.blend(colour * (0.6 + 0.4 * dome)[..., None], cover)
    canvas.height += cover * (height * dome)
    return cover


def _cover(canvas: Canvas, colour: RGB, cover: Array, share: float = 1.0) -> Array:
    """Blend a colour in, and return the cover (H, W)."""
    canvas.blend(linear(colour), share * cover)
    return cover


# by grade
_WIDTH = (0.11, 0.165, 0.175, 0.185, 0.195, 0.195)  # of the appendix, in canvas widths
_RED = (0.0, 0.5, 0.6, 0.55, 0.7, 0.75)  # redness of the appendix
_RED_AROUND = (0.0, 0.12, 0.3, 0.35, 0.5, 0.7)  # redness of the tissue around it
_FIBRIN = (0.0, 0.0, 0.6, 0.35, 0.45, 0.65)  # share of the appendix with a coat of fibrin


def _lay_appendix(rng: Generator, look: Look, grade: int, canvas: Canvas, thread: Array) -> Array:
    """Lay bowel and an appendix of a grade: swelling, redness, fibrin, necrosis, an abscess or pus."""
    H, W = canvas.shape
    ratio = H / W
    bowel = _ellipse(canvas, (0.15, 0.75 * ratio), (0.4, 0.3), 20)
    lay_organ(canvas, rng, _toned((226, 158, 142), look), "tubular", bowel)
    fat = _ellipse(canvas, (0.9, 0.25 * ratio), (0.35, 0.3), 40)
    lay_organ(canvas, rng, _toned((228, 184, 112), look), "lobular", fat)
    middle = np.array([0.5, 0.5 * ratio]) + rng.uniform(-0.06, 0.06, 2)
    near = np.exp(-2.0 * _ellipse(canvas, middle, (0.5, 0.4), 0.0) ** 2)
    noise = canvas.fractal(rng, 6)
    _cover(canvas, (190, 44, 44), near * np.clip(0.8 + 0.35 * noise, 0, 1), _RED_AROUND[grade])
    if grade == 5:
        _cover(canvas, (196, 64, 56), np.clip(0.55 + 0.4 * noise, 0, 1), 0.55)
    if grade == 4:
        _lay_abscess(canvas, rng, middle)
    angle = np.deg2rad(rng.uniform(-50, 50))
    along, side = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
    ends = [middle - 0.32 * along, middle + rng.uniform(-0.2, 0.2) * side, middle + 0.32 * along]
    pale, red = _toned((232, 178, 166), look, 0.15), linear((186, 42, 44))
    cover = _lay_tube(canvas, np.stack(ends), (1 - _RED[grade]) * pale + _RED[grade] * red, _WIDTH[grade], 7.0)
    _spoil(canvas, rng, cover, grade)
    return (cover > 0.5).astype(np.uint8)


def _spoil(canvas: Canvas, rng: Generator, cover: Array, grade: int) -> None:
    """Lay vessels, fibrin, necrosis and pus on the appendix of `cover` (H, W) and around it."""
    W = canvas.shape[1]
    if grade >= 1:
        _cover(canvas, (120, 10, 22), np.exp(-((canvas.fractal(rng, 16) / np.float32(0.1)) ** 2)) * cover, 0.7)
    if grade >= 3:
        patches = canvas.fractal(rng, 9)
        edge = np.quantile(patches[cover > 0.5], 0.45 if grade == 3 else 0.8)
        _cover(canvas, (44, 40, 30), step(patches, edge - 0.1, edge + 0.25) * cover, 0.94)
    if _FIBRIN[grade]:
        coat, about = canvas.fractal(rng, 11), cv2.GaussianBlur(cover, (0, 0), 0.035 * W).clip(0, 1) ** 0.5
        edge = np.quantile(coat, 1 - _FIBRIN[grade])
        patch = step(coat, edge - 0.15, edge + 0.25) * np.maximum(cover, 0.8 * about * (grade != 3))
        _cover(canvas, (240, 226, 184), patch, 0.92)
        canvas.height += 0.8 * patch
    if grade == 5:
        hollows = canvas.fractal(rng, 4) - 0.08 * (canvas.height - canvas.height.mean())
        edge = np.quantile(hollows[::4, ::4], 0.6)
        _cover(canvas, (234, 216, 164), step(hollows, edge - 0.1, edge + 0.3) * (1 - 0.8 * cover), 0.88)


def _lay_abscess(canvas: Canvas, rng: Generator, middle: Array) -> None:
    """Lay a walled-off pool of pus beside the appendix: creamy, with a thick red rim."""
    turn = rng.uniform(0, 2 * np.pi)
    centre = middle + 0.17 * np.array([np.cos(turn), 0.8 * np.sin(turn)])
    inside = 1.0 - _ellipse(canvas, centre, (0.28, 0.22), np.rad2deg(turn)) + 0.1 * canvas.fractal(rng, 6)
    rim = step(inside, -0.12, 0.02)
    _cover(canvas, (150, 26, 30), rim, 0.9)
    pus = step(inside, 0.1, 0.26)
    _cover(canvas, (236, 216, 160), pus, 0.96)
    canvas.height += 4.0 * rim - 2.0 * pus


OPERATIONS: dict[str, Operation] = {
    "cholecystectomy": Operation("cholecystectomy", PHASES, _lay_gallbladder, targets=_TARGETS),
    "appendectomy": Operation(
        "appendectomy", ("exploration", "dissection", "resection", "lavage"), _lay_appendix, grades=GRADES
    ),
}
