"""Render endoscopic videos with exact labels: tissue, instruments, light, smoke, optics and sensor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import cv2
import numpy as np

from shared_components.scenes import instruments, recording
from shared_components.scenes.anatomy import THINGS, lay_things
from shared_components.scenes.carving import ACCENT, DARK, METAL, PALE
from shared_components.scenes.grounds import GROUNDS
from shared_components.scenes.look import Look
from shared_components.scenes.looks import look_named
from shared_components.scenes.motion import Moment, Script
from shared_components.scenes.noise import fractal, linear, smooth, stream
from shared_components.scenes.operations import OPERATIONS, Operation, triplet_of, under_tip
from shared_components.scenes.raster import Buffers, Shader, draw
from shared_components.scenes.tissue import CANVAS, Lay, paint
from shared_components.scenes.toolbox import Tool, tool

Array = np.ndarray


_GEOMETRY, _APPEARANCE, _DETAIL, _THINGS, _OPERATION = 0, 1, 3, 4, 5
"""Random streams. Appearance and detail depend on the look, and the detail changes no labels."""


class Endoscope:
    """Renderer of a video's frames; tissue, light, noise, aperture and tools are computed once.

    The random stream `detail` changes only the picture, no labels.
    """

    def __init__(self, look: Look, seed: int, size: tuple[int, int], kinds: Sequence[str], lay: Lay | None) -> None:
        rng, detail = (stream(seed, number, look.stream) for number in (_APPEARANCE, _DETAIL))
        self.look, self.rng = look, rng
        self.height, self.width = height, width = size
        self.tissue = paint(look, rng, detail, size, lay, GROUNDS[look.ground])
        self.shader = Shader(look)
        scale = max(10.0, 0.03 * width)
        self.tools = {kind: _dressed(look, detail, kind, scale).stained(rng, look.tarnish) for kind in kinds}
        x = np.arange(width, dtype=np.float32) - np.float32(width / 2)
        y = np.arange(height, dtype=np.float32) - np.float32(height / 2)
        self.x, self.y = np.tile(x, (height, 1)), np.tile(y[:, None], (1, width))
        self.flow = [0.012 * width * smooth(rng, height, width, 4) for _ in range(4)]
        lamp = rng.uniform(*look.lamp, 2) * rng.choice((-1.0, 1.0), 2)
        bend = np.float32(0.7 / width)
        self.half = cv2.merge([self.x * bend + np.float32(lamp[0]), self.y * bend + np.float32(lamp[1]), 0.0 * self.x])
        self.halo = max(3, round(0.012 * width)) | 1
        self.light = self._light()
        self.clouds = fractal(rng, height // 4, width // 2, 7)
        self.grain = self._grain()
        self.curve = self._curve()
        self.mesh = recording.mesh(look, height, width)
        self.hues = [np.linspace(0, top, 256).astype(np.uint8) for top in look.hue]
        self.field = recording.aperture(look, rng, height, width)
        self.barrel = recording.distortion(look, height, width)
        self.overlay = recording.Overlay(look, detail, height, width) if look.recorder else None
        hidden = self.overlay.bare if self.overlay is not None and self.overlay.hides else None
        self.masks = [mask for mask in (self.field, hidden) if mask is not None]

    def _light(self) -> Array:
        """Return the gain (H, W, 3) of light source and vignette."""
        centre = self.rng.uniform(-0.06, 0.06, 2) * self.width
        distance = ((self.x - centre[0]) ** 2 + (self.y - centre[1]) ** 2) / np.float32(0.40 * self.width**2)
        gain = self.look.exposure * (1.0 - self.look.vignette * np.minimum(distance, 1.0))
        return (gain[..., None] * linear(self.look.light)).astype(np.float32)

    def _grain(self) -> Array:
        shape = (self.height + 32, self.width + 32, 3)
        grey = self.rng.standard_normal(shape[:2], dtype=np.float32)[..., None]
        colour = cv2.GaussianBlur(self.rng.standard_normal(shape, dtype=np.float32), (0, 0), 1.0)
        return np.round(self.look.noise * (grey + 1.5 * colour)).astype(np.int16)

    def _curve(self) -> Array:
        """Return the tone curve, uint8 (256,): an S for the look's contrast."""
        level = np.linspace(0.0, 1.0, 256)
        bent = level + 0.5 * (self.look.contrast - 1.0) * np.sin(2 * np.pi * (level - 0.5)) / np.pi * 1.5
        return np.clip(255.0 * bent + 0.5, 0, 255).astype(np.uint8)

    def shoot(self, moment: Moment) -> tuple[Array, Array, Array, Array, Buffers]:
        """Render a frame.

        Returns:
            Image uint8 (H, W, 3), depth (H, W) in mm, visible objects (H, W), all objects (H, W), instruments' labels.
        """
        light, relief, things = self._view_tissue(moment)
        buffers = Buffers.empty(self.height, self.width)
        draw(buffers, moment.poses, self.tools, self.shader)
        solid = buffers.parts > 0
        if moment.poses:
            light *= self._shadow(solid)
        glint = self._glints(relief)
        light += cv2.merge([glint, glint, glint])
        metal = np.flatnonzero(solid)  # flat indices are several times faster than masks
        flat = light.reshape(-1, 3)
        flat[metal] = self.shader.colours(buffers.finish.ravel()[metal], buffers.depth.ravel()[metal], flat, metal)
        light *= self.light
        self._fill_smoke(light, moment)
        depth = np.where(solid, buffers.depth, cv2.extractChannel(relief, 2))
        if self.barrel is not None:
            light = recording.distorted(light, self.barrel)
            depth, things, buffers.parts, buffers.instances = (
                recording.distorted(array, self.barrel, exact=True)
                for array in (depth, things, buffers.parts, buffers.instances)
            )
            solid = buffers.parts > 0
        image = self._expose(light)
        below = things.copy() if self.tissue.things is not None else things
        things[solid] = 0
        if self.field is not None:
            image *= self.field[..., None]
        if self.overlay is not None:
            self.overlay.draw(image)
        for mask in self.masks:
            for array in (depth, buffers.parts, buffers.instances, things):
                array *= mask
        return image, depth, things, below, buffers

    def _view_tissue(self, moment: Moment) -> tuple[Array, Array, Array]:
        """Return the tissue's light (H, W, 3), relief (H, W, 3) and objects (H, W) from the camera's position."""
        zoom = 1.0 - 0.06 * float(moment.shift[2])
        cos, sin = np.float32(zoom * np.cos(moment.turn)), np.float32(zoom * np.sin(moment.turn))
        pan = 0.07 * self.width * moment.shift[:2]
        a, b = (np.float32(value) for value in moment.breath)
        map_x = self.x * cos - self.y * sin + a * self.flow[0] + b * self.flow[1]
        map_y = self.x * sin + self.y * cos + a * self.flow[2] + b * self.flow[3]
        map_x += np.float32(self.width * CANVAS / 2 + pan[0])
        map_y += np.float32(self.height * CANVAS / 2 + pan[1])
        lit = cv2.remap(self.tissue.lit, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
        relief = cv2.remap(self.tissue.relief, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
        if self.tissue.things is None:
            return lit, relief, np.zeros((self.height, self.width), np.uint8)
        things = cv2.remap(self.tissue.things, map_x, map_y, cv2.INTER_NEAREST, borderMode=cv2.BORDER_REFLECT)
        return lit, relief, things

    def _shadow(self, solid: Array) -> Array:
        """Return the gain (H, W, 3) of tissue light from the soft shadows beside instruments."""
        H, W = self.height // 4, self.width // 4
        small = cv2.resize(solid.astype(np.float32), (W, H), interpolation=cv2.INTER_AREA)
        shift = np.array([[1, 0, 0.010 * self.width], [0, 1, 0.012 * self.width]], np.float32)
        small = cv2.warpAffine(small, shift, (W, H), borderMode=cv2.BORDER_REPLICATE)
        small = 1.0 - 0.6 * cv2.GaussianBlur(small, (0, 0), 0.006 * self.width)
        return cv2.resize(cv2.merge([small, small, small]), (self.width, self.height))

    def _glints(self, relief: Array) -> Array:
        """Return the highlights (H, W) of wet tissue, which are bright if the surface faces lamp and camera."""
        slope = relief + self.half
        fall = -1.0 / self.look.glint**2
        sharp = cv2.exp(cv2.transform(cv2.multiply(slope, slope), np.array([[fall, fall, 0.0]])))
        halo = cv2.blur(sharp, (self.halo, self.halo))  # light scatters in wet tissue and in the optics
        return cv2.addWeighted(sharp, 0.8 * self.look.gloss, halo, 0.5 * self.look.gloss, 0.0)

    def _fill_smoke(self, light: Array, moment: Moment) -> None:
        amount = self.look.smoke * moment.smoke
        if amount + self.look.haze <= 0.0:
            return
        H, W = self.height // 8, self.width // 8
        across, down = -W * (1 + np.sin(0.5 * moment.time)), -0.3 * H * (1 + np.cos(moment.time))
        drift = np.array([[1, 0, across], [0, 1, down]], np.float32)
        cloud = cv2.warpAffine(self.clouds, drift, (W, H), borderMode=cv2.BORDER_REFLECT)
        veil = np.clip(self.look.haze + amount * (0.45 + 0.35 * cloud), 0.0, 0.85).astype(np.float32)
        white = np.array([0.42, 0.42, 0.44], np.float32) * self.light[self.height // 2, self.width // 2]
        size = (self.width, self.height)
        light *= cv2.resize(cv2.merge([1.0 - veil] * 3), size)
        light += cv2.resize(veil[..., None] * white, size)

    def _expose(self, light: Array) -> Array:
        """Convert linear light to an 8-bit picture: shoulder, gamma, contrast, optics, sensor noise, recorder."""
        light *= np.float32(-1.9)
        cv2.exp(light, light)
        np.subtract(np.float32(1.0), light, out=light)
        picture = cv2.convertScaleAbs(cv2.sqrt(light, light), alpha=255.0)
        picture = cv2.LUT(picture, self.curve)
        picture = cv2.GaussianBlur(picture, (0, 0), max(0.45, self.look.blur * 1e-3 * self.width))
        if self.look.noise > 0.0:
            y, x = self.rng.integers(0, 32, 2)
            picture = cv2.add(picture, self.grain[y : y + self.height, x : x + self.width], dtype=cv2.CV_8U)
        if self.look.tint > 0.0:
            grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
            one_hue = cv2.merge([cv2.LUT(grey, table) for table in self.hues])
            picture = cv2.addWeighted(picture, 1.0 - self.look.tint, one_hue, self.look.tint, 0.0)
        if self.mesh is not None:
            picture = cv2.multiply(picture, self.mesh, scale=1.0 / 255.0)
        if self.look.compression > 0:
            picture = recording.compressed(picture, self.look.compression)
        return picture


def _dressed(look: Look, rng: np.random.Generator, kind: str, scale: float) -> Tool:
    """Draw a model of a kind in the look's materials."""
    model = tool(kind, scale, int(rng.integers(1000)), real=look.real)
    shaft = METAL if rng.random() < look.steel else DARK
    if look.painted > 0.0 and rng.random() < look.painted:
        shaft = PALE if rng.random() < 0.7 else ACCENT
    return model.dressed(shaft=shaft, tip=DARK if rng.random() < look.coat else METAL)


@dataclass(frozen=True)
class SceneFrame:
    image: Array  # uint8 RGB (H, W, 3)
    parts: Array  # uint8 (H, W): 0 background, 1 shaft, 2 wrist, 3 clasper
    instances: Array  # uint8 (H, W): 0, or 1 + index into `tools`
    depth: Array  # float32 (H, W): distance from the camera in mm; 0 outside the aperture
    phase: int  # index into the phases of the operation, or of `motion.PHASES`
    tools: tuple[str, ...]  # names of visible instruments, for example "Left_Prograsp_Forceps"
    actions: tuple[tuple[str, str, str], ...]  # (instrument, verb, target) of each visible instrument
    gesture: int  # SAR-RARP50 action 0 to 7, 0 outside suturing
    things: Array  # uint8 (H, W): 0, or 1 + index into the requested objects; 0 below instruments
    triplets: tuple[int, ...] = ()  # cholecystectomy: number of each visible instrument's triplet in `data.triplets`
    grade: int = 0  # appendicitis: index into `operations.GRADES`


def render_video(
    look: str,
    seed: int,
    *,
    frames: int,
    height: int = 256,
    width: int = 320,
    rate: float = 2.0,
    things: Sequence[str] = (),
    operation: str = "",
    grade: int = 0,
) -> Iterator[SceneFrame]:
    """Render `frames` consecutive frames of a video; equal arguments give equal bits.

    The instruments' labels of looks in `looks.LOOKS` do not depend on the look, except that parts and depth are 0
    outside an aperture. Objects move with the look's tissue. Looks drawn from numbers have their own instruments.

    Args:
        look: Name from `looks.LOOKS`, or "<family>-<number>", see `looks.look_named`.
        seed: Non-negative number of the video.
        frames: Length of the video; the operation's phases are spread over it.
        height, width: At least 64 pixels each.
        rate: Frames per second (2 in EndoVis; more for smooth motion).
        things: Objects on the tissue, from `anatomy.THINGS`; they change image and depth, but no instruments' labels.
        operation: Name from `operations.OPERATIONS`; empty: the look's operation. It may have its own objects.
        grade: Severity of the operation's disease; 0 without grades.

    Raises:
        ValueError: An argument is unknown or out of range, or an operation with its own objects gets `things`.
    """
    chosen = look_named(look)
    if seed < 0 or frames < 1 or rate <= 0:
        raise ValueError(f"seed {seed} must be >= 0, frames {frames} >= 1 and rate {rate} > 0")
    if height < 64 or width < 64:
        raise ValueError(f"frames of {height}x{width} (height x width) are too small; both must be at least 64")
    if unknown := [name for name in things if name not in THINGS]:
        raise ValueError(f"thing {unknown[0]!r} is unknown; known things: {', '.join(THINGS)}")
    things = things or (() if operation else chosen.things)
    operation = operation or ("" if things else chosen.operation)
    if operation:
        _check_operation(operation, grade, things)

    def shoot() -> Iterator[SceneFrame]:
        performed = OPERATIONS.get(operation)
        technique = performed.technique if performed else chosen.technique
        script = Script(stream(seed, _GEOMETRY), frames=frames, rate=rate, technique=technique, empty=chosen.empty)
        # all of a robot's tools are drawn, because the depths of old looks depend on the position in the stream
        kinds = instruments.KINDS if technique == "fixed" else script.kinds
        lay: Lay | None = partial(lay_things, stream(seed, _THINGS), tuple(things)) if things else None
        if performed:
            lay = partial(performed.lay, stream(seed, _OPERATION), chosen, grade)
        camera = Endoscope(chosen, seed, (height, width), kinds, lay)
        for index in range(frames):
            moment = script.moment(index)
            image, depth, visible, below, buffers = camera.shoot(moment)
            frame = _label(image, depth, visible, buffers, moment)
            if performed:
                frame = replace(frame, triplets=_triplets(performed, below, buffers, moment), grade=grade, gesture=0)
            yield frame

    return shoot()


def _check_operation(operation: str, grade: int, things: Sequence[str]) -> None:
    if operation not in OPERATIONS:
        raise ValueError(f"operation {operation!r} is unknown; known operations: {', '.join(OPERATIONS)}")
    if not 0 <= grade < max(len(OPERATIONS[operation].grades), 1):
        known = ", ".join(map(str, range(len(OPERATIONS[operation].grades)))) or "none"
        raise ValueError(f"{operation} has no grade {grade}; its grades: {known}")
    if things:
        raise ValueError(f"{operation} has its own objects on the tissue; leave {', '.join(things)} out")


def _triplets(operation: Operation, below: Array, buffers: Buffers, moment: Moment) -> tuple[int, ...]:
    """Return the triplet of each visible instrument, from the objects (H, W) under its claspers."""
    if not operation.targets:
        return ()
    masks = [buffers.instances == number for number in range(1, len(moment.poses) + 1)]
    return tuple(
        triplet_of(pose, under_tip(operation, below[mask & (buffers.parts == 3)]))
        for pose, mask in zip(moment.poses, masks, strict=True)
        if mask.any()
    )


def _label(image: Array, depth: Array, things: Array, buffers: Buffers, moment: Moment) -> SceneFrame:
    """Build a frame with its labels, without instruments that are hidden or outside the picture."""
    count = np.bincount(buffers.instances.ravel(), minlength=len(moment.poses) + 1)
    visible = [i for i in range(len(moment.poses)) if count[i + 1] > 0]
    renumber = np.zeros(256, np.uint8)
    for position, i in enumerate(visible, start=1):
        renumber[i + 1] = position
    poses = [moment.poses[i] for i in visible]
    target = "needle" if moment.phase == 3 else "tissue"
    return SceneFrame(
        image=image, parts=buffers.parts, instances=renumber[buffers.instances], things=things,
        depth=depth.astype(np.float32, copy=False), phase=moment.phase, gesture=moment.gesture,
        tools=tuple(pose.name for pose in poses),
        actions=tuple((pose.name, pose.verb, "none" if pose.verb == "idle" else target) for pose in poses),
    )  # fmt: skip
