"""Draw height maps of solid parts in millimetres: polygons with rounded edges, grooves, pins, grain."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.random import Generator

from shared_components.scenes.noise import fractal, smooth

Array = np.ndarray
Point = tuple[float, float]

DARK, METAL, STAINED, ACCENT, PALE, CLEAR = range(6)  # materials
HEIGHT_SCALE, ALBEDO_SCALE = 32.0, 170.0  # uint8 steps per mm and per unit of albedo


def circle(centre: Point, radius: float, count: int) -> list[Point]:
    turns = np.linspace(0, 2 * np.pi, count, endpoint=False)
    return [(centre[0] + radius * np.cos(t), centre[1] + radius * np.sin(t)) for t in turns]


@dataclass(frozen=True)
class Plate:
    """One part as images of (h, w) pixels."""

    surface: Array  # uint8 (h, w, 4): normal x and y (128 = 0, 127 steps per unit), height, albedo
    cover: Array  # uint8 (h, w): 0 outside, 1 + material inside
    origin: Point  # pixel (x, y) of the joint
    scale: float  # pixels per mm

    def stained(self, rng: Generator, share: float) -> "Plate":
        """Return the plate with about `share` of its metal stained in patches."""
        columns = np.flatnonzero((self.cover == 1 + METAL).any(0))
        if len(columns) == 0:
            return self
        cover = self.cover.copy()
        region = cover[:, columns[0] : columns[-1] + 1]
        h, w = region.shape
        level = fractal(rng, h, w, max(3.0, w / self.scale / 3.0), octaves=4)
        level += 0.5 * smooth(rng, h, w, w / self.scale * 4.0)
        region[(region == 1 + METAL) & (level > 1.6 - 3.0 * share)] = 1 + STAINED
        return replace(self, cover=cover)

    def remade(self, old: int, new: int) -> "Plate":
        """Return the plate with one material replaced by another."""
        return replace(self, cover=np.where(self.cover == 1 + old, np.uint8(1 + new), self.cover))

    def shrunk(self, factor: float) -> "Plate":
        """Return the plate with all lengths multiplied by `factor`; its thickness stays."""
        return replace(self, scale=self.scale / factor)

    def mirrored(self) -> "Plate":
        surface = self.surface[::-1].copy()
        surface[..., 1] = np.minimum(256 - surface[..., 1].astype(np.int16), 255)
        joint = (self.origin[0], self.cover.shape[0] - 1 - self.origin[1])
        return Plate(surface, self.cover[::-1].copy(), joint, self.scale)


class Carver:
    """A height map under construction; lengths in mm, x from `left` to `right`, y from -half to half.

    `height` is the surface. `relief` is finer detail that changes the shading but no depth.
    """

    def __init__(self, left: float, right: float, half: float, scale: float) -> None:
        self.left, self.half, self.scale = left, half, scale
        self.shape = (round(2 * half * scale) + 3, round((right - left) * scale) + 3)
        self.height = np.zeros(self.shape, np.float32)
        self.relief = np.zeros(self.shape, np.float32)
        self.albedo = np.ones(self.shape, np.float32)
        self.cover = np.zeros(self.shape, np.uint8)
        self.origin = (1 - left * scale, 1 + half * scale)

    def _mask(self, points: Sequence[Point]) -> Array:
        pixels = (np.asarray(points) * self.scale + self.origin) * 16
        mask = np.zeros(self.shape, np.uint8)
        cv2.fillPoly(mask, [np.round(pixels).astype(np.int32)], 1, shift=4)
        return mask

    def body(self, points: Sequence[Point], *, thick: float, round_: float, material: int = METAL) -> None:
        """Raise a polygon to `thick` mm with edges rounded over `round_` mm."""
        self._raise(self._mask(points), thick, round_, material)

    def wire(self, points: Sequence[Point], radius: float, *, material: int = METAL) -> None:
        """Lay a round wire along points."""
        pixels = np.round((np.asarray(points) * self.scale + self.origin) * 16).astype(np.int32)
        mask = np.zeros(self.shape, np.uint8)
        cv2.polylines(mask, [pixels], False, 1, max(1, round(2 * radius * self.scale)), cv2.LINE_8, 4)
        self._raise(mask, radius, radius, material)

    def _raise(self, mask: Array, thick: float, round_: float, material: int) -> None:
        edge = cv2.distanceTransform(np.pad(mask, 1), cv2.DIST_L2, 5)[1:-1, 1:-1] / (self.scale * round_)
        self._put(thick * np.sqrt(np.clip(1.0 - (1.0 - np.minimum(edge, 1.0)) ** 2, 0.0, 1.0)), mask > 0, material)

    def _put(self, raised: Array, inside: Array, material: int) -> None:
        """Cover the part with `material` up to the height `raised` inside a region, if it is higher."""
        higher = inside & (raised >= self.height)
        self.height[higher] = raised[higher]
        self.cover[higher] = 1 + material

    def disc(self, centre: Point, radius: float, *, thick: float, round_: float, material: int = METAL) -> None:
        self.body(circle(centre, radius, 40), thick=thick, round_=round_, material=material)

    def sink(self, points: Sequence[Point], *, deep: float, dark: float) -> None:
        """Press a polygon `deep` mm into the part and darken it."""
        self._press(self._mask(points).astype(np.float32), deep, dark)

    def _press(self, mask: Array, deep: float, dark: float) -> None:
        mask = cv2.GaussianBlur(mask, (0, 0), 0.12 * self.scale)
        self.height = np.maximum(self.height - deep * mask, 0.0)
        self.albedo *= 1.0 - (1.0 - dark) * mask

    def groove(self, start: Point, end: Point, width: float, *, dark: float = 0.35) -> None:
        dx, dy = end[0] - start[0], end[1] - start[1]
        length = float(np.hypot(dx, dy))
        nx, ny = -dy / length * width / 2, dx / length * width / 2
        corners = [(start[0] + nx, start[1] + ny), (end[0] + nx, end[1] + ny)]
        corners += [(end[0] - nx, end[1] - ny), (start[0] - nx, start[1] - ny)]
        self.sink(corners, deep=0.25, dark=dark)

    def ring(self, centre: Point, radius: float, width: float, *, deep: float, dark: float) -> None:
        """Cut a circular groove of `width` mm."""
        mask = np.zeros(self.shape, np.float32)
        place = [round(16 * (value * self.scale + at)) for value, at in zip(centre, self.origin, strict=True)]
        thick = max(1, round(width * self.scale))
        cv2.circle(mask, (place[0], place[1]), round(16 * radius * self.scale), 1.0, thick, shift=4)
        self._press(mask, deep, dark)

    def pin(self, centre: Point, radius: float, *, turn: float = 0.0, slot: bool = True) -> None:
        """Set a rivet, a bright disc in a dark ring; with a `slot` it is a screw, turned by `turn` radians."""
        self.sink(circle(centre, radius, 32), deep=0.4, dark=0.3)
        mask = self._mask(circle(centre, radius * 0.7, 32)) > 0
        self.height[mask] += 0.5
        self.albedo[mask] = 1.15
        if slot:
            self._slot(centre, 0.6 * radius, turn)

    def _slot(self, centre: Point, half: float, turn: float) -> None:
        """Cut a screw's slot: lengthways in the depth, as in earlier versions, and turned in the shading."""
        height, albedo = self.height, self.albedo.copy()
        self.groove((centre[0] - half, centre[1]), (centre[0] + half, centre[1]), 0.25)
        self.albedo = albedo
        dx, dy = half * np.cos(turn), half * np.sin(turn)
        cut, self.height = self.height, height
        self.groove((centre[0] - dx, centre[1] - dy), (centre[0] + dx, centre[1] + dy), 0.25, dark=0.4)
        self.relief += self.height - cut
        self.height = cut

    def tube(self, radius: float, length: float, *, end: float = 0.0, material: int = DARK) -> None:
        """Lay a round tube along the axis, from -length to `end`."""
        x, y = self.axes()
        inside = (np.abs(y)[:, None] <= radius) & (x[None] <= end) & (x[None] >= -length)
        arch = np.sqrt(np.maximum(radius**2 - y**2, 0.0)).astype(np.float32)
        self.height = np.where(inside, np.maximum(arch[:, None], self.height), self.height)
        self.cover[inside] = 1 + material

    def turned(self, profile: Sequence[Point], *, material: int = METAL) -> None:
        """Raise a body of revolution about the axis from (place, radius) pairs, linear in between."""
        x, y = self.axes()
        places, radii = zip(*profile, strict=True)
        radius = np.interp(x, places, radii, left=0.0, right=0.0).astype(np.float32)
        raised = np.sqrt(np.maximum(radius[None] ** 2 - y[:, None] ** 2, 0.0))
        self._put(raised, raised > 0, material)

    def band(self, start: float, end: float, material: int) -> None:
        """Change the material between two places along the axis."""
        x, _ = self.axes()
        columns = (x > start) & (x <= end)
        self.cover[:, columns] = np.where(self.cover[:, columns] > 0, np.uint8(1 + material), np.uint8(0))

    def shade_band(self, at: float, width: float, gain: float) -> None:
        """Darken or brighten a ring around the axis."""
        x, _ = self.axes()
        self.albedo[:, np.abs(x - at) < width] *= np.float32(gain)

    def print_word(self, at: float, size: float, rng: Generator) -> None:
        """Print random letters of `size` mm along the axis, in the pale or the accent material."""
        letters = "".join(chr(int(c)) for c in rng.integers(65, 91, int(rng.integers(3, 9))))
        word = np.zeros(self.shape, np.uint8)
        place = round(at * self.scale + self.origin[0]), round(0.5 * size * self.scale + self.origin[1])
        scale, thick = size * self.scale / 22.0, max(1, round(size * self.scale / 7.0))
        cv2.putText(word, letters, place, cv2.FONT_HERSHEY_SIMPLEX, scale, 1, thick)
        word = word[::-1]  # rows of a plate run upwards
        self.cover[(word > 0) & (self.cover > 0)] = 1 + (PALE if rng.random() < 0.8 else ACCENT)

    def streaks(self, rng: Generator, depth: float, *, along: int = 60) -> None:
        """Vary the albedo at `along` places along the axis, as on a wiped tube."""
        field = cv2.resize(rng.standard_normal((24, along), dtype=np.float32), self.shape[::-1])
        self.albedo += np.float32(depth) * field

    def axes(self) -> tuple[Array, Array]:
        """Return x of every column and y of every row, in mm."""
        x = (np.arange(self.shape[1], dtype=np.float32) - self.origin[0]) / self.scale
        y = (np.arange(self.shape[0], dtype=np.float32) - self.origin[1]) / self.scale
        return x, y

    def plate(self, grain: float, rng: Generator) -> Plate:
        """Return the finished plate; `grain` roughens the albedo like cast metal."""
        visible = self.height + self.relief
        slope_x = cv2.Sobel(visible, cv2.CV_32F, 1, 0, scale=self.scale / 8)
        slope_y = cv2.Sobel(visible, cv2.CV_32F, 0, 1, scale=self.scale / 8)
        length = np.sqrt(1.0 + slope_x**2 + slope_y**2)
        speckle = cv2.GaussianBlur(rng.standard_normal(self.shape).astype(np.float32), (0, 0), 0.07 * self.scale)
        albedo = self.albedo * (1.0 + grain * speckle / max(float(speckle.std()), 1e-6))
        normal = (128 - 127 * slope_x / length, 128 - 127 * slope_y / length)
        channels = np.stack([*normal, HEIGHT_SCALE * self.height, ALBEDO_SCALE * albedo], -1)
        return Plate(np.clip(channels + 0.5, 0, 255).astype(np.uint8), self.cover, self.origin, self.scale)
