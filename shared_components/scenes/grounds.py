"""Backgrounds: organs in a cavity, an eye under a microscope, or a hollow organ from within."""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.random import Generator

from shared_components.scenes.look import RGB, Look
from shared_components.scenes.noise import linear, smooth, step
from shared_components.scenes.tissue import Array, Canvas, Ground, draw_vessels, lay_background, lay_organ, spill_blood

_REFLEX = 1.6  # linear light of a reflex that saturates the camera
_THREADS = ((120, 90, 190), (220, 220, 215), (40, 60, 150))


def lay_organs(canvas: Canvas, look: Look, rng: Generator) -> Array:
    """Cover a canvas with a look's organs, bands, vessels, blood, gauze and thread; see `Ground`."""
    (colour, kind), *organs = look.organs
    lay_background(canvas, rng, linear(colour), kind)
    for colour, kind in organs:
        for _ in range(int(rng.integers(1, 3))):
            lay_organ(canvas, rng, linear(colour), kind)
    for _ in range(look.bands):
        _lay_band(canvas, look, rng)
    draw_vessels(canvas, look, rng)
    spill_blood(canvas, look, rng)
    if rng.random() < look.gauze:
        _lay_gauze(canvas, rng)
    return _draw_thread(canvas, rng) if rng.random() < look.thread else np.zeros(canvas.shape, np.float32)


def _lay_band(canvas: Canvas, look: Look, rng: Generator) -> None:
    """Lay a smooth, long and rounded organ, such as a loop of bowel or a ligament."""
    along, across = canvas.turned(rng)
    bend = np.float32(rng.uniform(0.0, 0.09)) * smooth(rng, *canvas.shape, 2.5)
    across = (across + bend) / np.float32(rng.uniform(0.02, 0.11))
    radius = cv2.magnitude(along / np.float32(rng.uniform(0.4, 1.5)), across)
    colour, kind = look.organs[int(rng.integers(len(look.organs)))]
    lay_organ(canvas, rng, linear(colour), kind if rng.random() < 0.3 else "plain", radius, rough=0.04)


def _lay_gauze(canvas: Canvas, rng: Generator) -> None:
    """Lay a woven swab without highlights, partly soaked, as bright and as grey as an instrument."""
    along, across = canvas.turned(rng)
    bend = 0.02 * canvas.fractal(rng, 5)
    along, across = along + bend, across - bend
    inside = np.minimum(rng.uniform(0.12, 0.24) - np.abs(along), rng.uniform(0.04, 0.1) - np.abs(across))
    cover = step(inside, 0.0, 0.008)
    weave = 0.84 + 0.1 * np.sin(along * 420) * np.sin(across * 420) + 0.06 * canvas.fractal(rng, 20)
    soak = 0.8 * step(canvas.fractal(rng, 5), 0.2, 1.2)
    dry, wet = linear((206, 204, 200)), linear((190, 60, 56)) - 1.0
    canvas.blend(dry * weave[..., None] * (1.0 + wet * soak[..., None]), cover)
    canvas.height += cover * (2.0 + 0.6 * canvas.fractal(rng, 10))
    canvas.dull = np.maximum(canvas.dull, cover)


def _draw_thread(canvas: Canvas, rng: Generator) -> Array:
    """Lay a suture thread in a smooth curve; return its cover (H, W)."""
    H, W = canvas.shape
    time = np.linspace(0, 1, 40)
    ends = rng.uniform((0.1, 0.1), (0.9, 0.9), (4, 2))
    weights = np.stack([(1 - time) ** 3, 3 * time * (1 - time) ** 2, 3 * time**2 * (1 - time), time**3], 1)
    points = np.round(weights @ ends * (W, H) * 16).astype(np.int32)
    mask = np.zeros((H, W), np.uint8)
    cv2.polylines(mask, [points], False, 255, max(1, round(W * 0.0035)), cv2.LINE_AA, 4)
    cover = mask.astype(np.float32) / 255.0
    canvas.blend(linear(_THREADS[int(rng.integers(len(_THREADS)))]), cover)
    canvas.height += 0.8 * cover
    return cover


def _polar(canvas: Canvas, centre: Sequence[float] | Array) -> tuple[Array, Array]:
    """Return distance (H, W) in canvas widths and angle (H, W) in radians, both around a centre."""
    x, y = canvas.x - np.float32(centre[0]), canvas.y - np.float32(centre[1])
    return cv2.magnitude(x, y), cv2.phase(x, y)


def _around(angle: Array, rng: Generator, depth: float) -> Array:
    """Return a smooth periodic function of the angle with an amplitude of about `depth`."""
    total = np.zeros_like(angle)
    for n in range(2, 5):
        total += np.float32(depth * rng.normal() / n) * np.cos(n * angle + np.float32(rng.uniform(0, 6.3)))
    return total


def lay_eye(canvas: Canvas, look: Look, rng: Generator) -> Array:
    """Lay lids or a drape, sclera, iris, pupil, reflexes, and a lid retractor without label, as in CaDIS."""
    H, W = canvas.shape
    lids, sclera, iris, pupil = (linear(colour) for colour, _ in look.organs)
    canvas.height[:] = 0.25 * canvas.height
    middle = 0.5 + rng.uniform(-0.06, 0.06), 0.5 * H / W + rng.uniform(-0.05, 0.05)
    limbus = rng.uniform(0.15, 0.3)  # radius of the cornea, in canvas widths
    radius, angle = _polar(canvas, middle)
    lay_background(canvas, rng, sclera, "plain")
    draw_vessels(canvas, look, rng)
    spill_blood(canvas, look, rng)
    canvas.dull = step(canvas.fractal(rng, 6), rng.uniform(-1.2, 0.6), 1.0)
    canvas.height -= 40.0 * limbus * (radius / np.float32(2.2 * limbus)) ** 2  # a ball
    _lay_lids(canvas, rng, lids, middle, limbus)
    _lay_iris(canvas, rng, radius / np.float32(limbus), angle, iris, pupil)
    _lay_retractor(canvas, rng, middle, limbus)
    _lay_reflexes(canvas, rng, middle, limbus)
    return np.zeros(canvas.shape, np.float32)


def _lay_iris(canvas: Canvas, rng: Generator, radius: Array, angle: Array, iris: Array, pupil: Array) -> None:
    """Lay an iris of fibres within radius 1, and a pupil with reflex, torn capsule and fragments of the lens."""
    inside = 1.0 + _around(angle, rng, 0.01) - radius
    cornea = step(inside, -0.03, 0.05)
    fibres = cv2.remap(
        rng.standard_normal((12, 180), dtype=np.float32), angle * np.float32(180 / 6.284), radius * 8,
        cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP,
    )  # fmt: skip
    ring = 0.55 + 0.45 * step(inside, 0.0, 0.2)  # the limbus is dark
    gain = np.clip(ring * (1.0 + 0.25 * fibres + 0.1 * canvas.fractal(rng, 9)), 0.2, 1.6)
    canvas.blend(iris * gain[..., None], cornea)
    wide = rng.uniform(0.45, 0.9)  # usually a dilated pupil
    hole = step(wide * (1.0 + _around(angle, rng, 0.03)) - radius, -0.015, 0.02)
    glow = np.clip(1.1 - 0.5 * (radius / wide) ** 2 + rng.uniform(0.0, 0.4) * canvas.fractal(rng, 5), 0.15, 1.5)
    canvas.blend(pupil * glow[..., None], hole)
    if rng.random() < 0.6:  # the bright edge of a torn capsule
        rim = np.abs(radius - wide * (rng.uniform(0.6, 0.85) + _around(angle, rng, 0.05)))
        canvas.blend(0.5 + 0.5 * pupil, 0.5 * np.exp(-((rim / np.float32(0.02)) ** 2)) * hole)
    if rng.random() < 0.5:  # a cracked or soft lens
        canvas.blend(0.3 * pupil, 0.7 * np.exp(-((canvas.fractal(rng, 7) / np.float32(0.08)) ** 2)) * hole)
        canvas.blend(0.6 * pupil + 0.3, 0.6 * step(canvas.fractal(rng, 8), 0.3, 1.0) * hole)
    dome = 4.0 * np.sqrt(np.clip(inside, 0.0, 1.0)) + 0.1 * canvas.fractal(rng, 4)
    canvas.height += cornea * (float(canvas.height.max()) + dome - canvas.height)  # smooth as glass
    canvas.dull = np.maximum(canvas.dull, step(inside, -0.1, 0.0))  # `_lay_reflexes` draws its reflexes


def _lay_lids(canvas: Canvas, rng: Generator, colour: Array, middle: Sequence[float], limbus: float) -> None:
    """Lay lids, skin or a drape around the opening between them."""
    turn = rng.uniform(-0.4, 0.4)
    cos, sin = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    x, y = canvas.x - np.float32(middle[0]), canvas.y - np.float32(middle[1])
    across = np.abs((x * cos + y * sin) / np.float32(limbus * rng.uniform(2.0, 3.0)))
    down = np.abs((y * cos - x * sin) / np.float32(limbus * rng.uniform(1.15, 1.9)))
    outside = across**2.2 + down**2.2 - 1.0 + 0.12 * canvas.fractal(rng, 5)
    cover = step(outside, 0.0, 0.05)
    fold = 1.0 - np.abs(canvas.fractal(rng, 4, octaves=3))
    canvas.blend(colour * np.clip(0.75 + 0.25 * fold + 0.06 * canvas.fractal(rng, 60), 0.2, 1.3)[..., None], cover)
    canvas.blend(np.array([0.5, 0.14, 0.12]), 0.55 * np.exp(-((outside / np.float32(0.1)) ** 2)))  # the lid's red edge
    canvas.height += cover * (2.5 + 1.5 * fold)


def _rod(canvas: Canvas, points: Array, wide: float, colour: Array) -> None:
    """Lay a round metal wire along points (N, 2) in canvas widths: a bright line with dark sides."""
    W = canvas.shape[1]
    thick = max(2, round(wide * W))
    mask = np.zeros(canvas.shape, np.uint8)
    cv2.polylines(mask, [np.round(points * W * 16).astype(np.int32)], False, 255, thick, cv2.LINE_8, 4)
    inside = cv2.distanceTransform(mask, cv2.DIST_L2, cv2.DIST_MASK_3) / np.float32(thick / 2)
    cover = step(inside, 0.0, 2.0 / thick)
    shine = np.float32(0.15) + 1.3 * np.exp(-(((inside - 0.85) / 0.35) ** 2))
    canvas.blend(colour * shine[..., None], cover)
    canvas.height += 2.0 * cover * np.sqrt(np.clip(inside, 0.0, 1.0))


def _lay_retractor(canvas: Canvas, rng: Generator, middle: Sequence[float], limbus: float) -> None:
    """Lay the wires of a speculum on both lids, in most videos."""
    if rng.random() < 0.25:
        return
    turn, wide, gap = rng.uniform(-0.4, 0.4), rng.uniform(0.006, 0.016), limbus * rng.uniform(1.2, 1.8)
    half, deep = limbus * rng.uniform(0.3, 0.7), limbus * rng.uniform(0.2, 0.6)
    metal = linear((205, 208, 214)) * np.float32(rng.uniform(0.6, 1.2))
    for side in (-1.0, 1.0):
        left = [(-half, 3.0), (-half, 1.0), (-half, 0.2), (-0.6 * half, 0.0)]
        loop = np.array([*left, *((-x, y) for x, y in left[::-1])])
        x, y = loop[:, 0], side * (gap + loop[:, 1] * deep)
        points = np.stack([x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)], 1)
        _rod(canvas, points + np.asarray(middle), wide, metal)


def _lay_reflexes(canvas: Canvas, rng: Generator, middle: Sequence[float], limbus: float) -> None:
    """Lay the reflexes of the microscope's lamps in the cornea: a few bright discs or rings."""
    for _ in range(int(rng.integers(1, 5))):
        radius, angle = _polar(canvas, np.asarray(middle) + rng.normal(0, 0.3 * limbus, 2))
        size = limbus * rng.uniform(0.03, 0.14)
        shape = radius * (1.0 + _around(angle, rng, 0.15)) / np.float32(size)
        spot = step(-np.abs(shape - 1.0), -0.35, -0.15) if rng.random() < 0.3 else step(-shape, -1.0, -0.8)
        canvas.blend(np.full(3, _REFLEX), np.maximum(spot, 0.15 * np.exp(-((shape / 2.5) ** 2))))


def lay_lumen(canvas: Canvas, look: Look, rng: Generator) -> Array:
    """Lay the wall of a hollow organ along its axis: folds, a dark depth, debris and bubbles."""
    H, W = canvas.shape
    canvas.height *= 0.4
    (colour, kind), *growths = look.organs
    lay_background(canvas, rng, linear(colour), kind)
    draw_vessels(canvas, look, rng)
    centre = 0.5 + rng.uniform(-0.32, 0.32), (0.5 + rng.uniform(-0.32, 0.32)) * H / W
    radius, angle = _polar(canvas, centre)
    corners = int(rng.integers(2, 5))  # 3: as in the transverse colon
    radius = radius * (1.0 + rng.uniform(0.0, 0.2) * np.cos(corners * angle + np.float32(rng.uniform(0, 6.3))))
    radius = radius * (1.0 + _around(angle, rng, 0.12)) + 0.02 * canvas.fractal(rng, 6)
    along = np.log(np.maximum(radius, 0.004))  # equal steps are equal ratios of the distance
    _lay_folds(canvas, rng, along, angle)
    for colour, kind in growths:
        if rng.random() < 0.5:
            place = rng.uniform((0.2, 0.2 * H / W), (0.8, 0.8 * H / W))
            lay_organ(canvas, rng, linear(colour), kind, _polar(canvas, place)[0] / np.float32(rng.uniform(0.03, 0.12)))
    spill_blood(canvas, look, rng)
    _lay_debris(canvas, rng)
    deep = rng.uniform(0.05, 0.2)
    canvas.scale(0.04 + 0.96 * step(radius, 0.1 * deep, 1.6 * deep))
    dry = step(canvas.fractal(rng, 4), rng.uniform(-1.0, 0.5), 0.8)
    canvas.dull = np.maximum(dry, 1.0 - step(radius, 0.8 * deep, 2.0 * deep))  # nothing glints in the dark
    canvas.scale(np.clip(0.55 + 0.9 * radius, 0.0, 1.2))
    return np.zeros(canvas.shape, np.float32)


def _lay_folds(canvas: Canvas, rng: Generator, along: Array, angle: Array) -> None:
    """Raise folds with dark sides, across part of the tube, or along it as in a stomach."""
    W = canvas.shape[1]
    lengthwise = rng.random() < 0.25
    if lengthwise:
        wave = np.float32(rng.integers(5, 12)) * angle / np.float32(2 * np.pi) + 0.6 * canvas.fractal(rng, 3)
    else:
        wave = along * np.float32(rng.uniform(0.9, 1.9)) + _around(angle, rng, 0.35) + 0.12 * canvas.fractal(rng, 5)
    place = wave - np.floor(wave)
    part = np.ones_like(wave) if lengthwise else np.clip(0.7 + 0.5 * np.sin(3 * angle + 2.0 * np.floor(wave)), 0.3, 1.0)
    sharp = rng.uniform(0.1, 0.3)
    crest = np.exp(-((np.minimum(place, 1.0 - place) / np.float32(sharp)) ** 2)) * part
    shade = step(place, 0.65, 0.97) * (1.0 - step(place, 0.97, 1.0)) * part
    canvas.scale(1.0 + 0.4 * crest - rng.uniform(0.45, 0.85) * shade)
    canvas.height += np.float32(rng.uniform(0.8, 2.5)) * cv2.GaussianBlur(crest, (0, 0), 0.012 * W)


_DEBRIS: tuple[RGB, ...] = ((122, 84, 30), (176, 140, 50), (104, 112, 44), (214, 200, 150), (90, 50, 24))


def _lay_debris(canvas: Canvas, rng: Generator) -> None:
    """Lay flecks of stool or food, a pool of turbid fluid and bubbles, each in some videos."""
    H, W = canvas.shape
    colour = linear(_DEBRIS[int(rng.integers(len(_DEBRIS)))])
    if rng.random() < 0.5:
        level = canvas.fractal(rng, rng.uniform(12, 40))
        cover = step(level, edge := float(rng.uniform(1.5, 2.6)), edge + 0.3)
        canvas.blend(colour * (0.8 + 0.2 * smooth(rng, H, W, 30))[..., None], 0.9 * cover)
        canvas.height += 0.8 * cover
    if rng.random() < 0.4:
        level = canvas.fractal(rng, 3) - 0.1 * (canvas.height - canvas.height.mean())
        edge = float(np.quantile(level[::4, ::4], rng.uniform(0.7, 0.92)))
        cover = step(level, edge, edge + 0.1)
        canvas.blend(colour, rng.uniform(0.4, 0.9) * cover)
        canvas.height -= cover * (canvas.height - cv2.blur(canvas.height, (W // 20, W // 20)))
    if rng.random() < 0.5:
        _lay_bubbles(canvas, rng)


def _lay_bubbles(canvas: Canvas, rng: Generator) -> None:
    """Lay clusters of bubbles: clear discs with a rim and a small highlight."""
    W = canvas.shape[1]
    ring, spot = np.zeros(canvas.shape, np.uint8), np.zeros(canvas.shape, np.uint8)
    for centre in rng.uniform((0.1, 0.1), (0.9, 0.7), (int(rng.integers(1, 5)), 2)):
        for place in centre + rng.normal(0, 0.05, (int(rng.integers(3, 40)), 2)):
            size = float(np.exp(rng.uniform(np.log(0.003), np.log(0.02))))
            pixel = [round(16 * value * W) for value in place]
            light = [round(16 * (value - 0.3 * size) * W) for value in place]
            cv2.circle(ring, pixel, round(16 * size * W), 255, max(1, round(0.2 * size * W)), cv2.LINE_AA, 4)
            cv2.circle(spot, light, round(16 * 0.25 * size * W), 255, -1, cv2.LINE_AA, 4)
    canvas.blend(np.array([0.75, 0.7, 0.6]), ring.astype(np.float32) / 255 * 0.45)
    canvas.blend(np.full(3, 1.3), spot.astype(np.float32) / 255)


GROUNDS: dict[str, Ground] = {"organs": lay_organs, "eye": lay_eye, "lumen": lay_lumen}
