"""Project instrument plates into the image: perspective, occlusion, and shading of metal under a headlight."""

from collections.abc import Mapping
from dataclasses import dataclass

import cv2
import numpy as np

from shared_components.scenes.carving import ALBEDO_SCALE, CLEAR, DARK, HEIGHT_SCALE, METAL, STAINED, Plate
from shared_components.scenes.instruments import CLASPER, EAR, EARS, RADIUS, SHAFT, WRIST, Tool
from shared_components.scenes.look import Look
from shared_components.scenes.motion import Pose, cross
from shared_components.scenes.noise import linear
from shared_components.scenes.tissue import NEAREST

Array = np.ndarray

FOCAL = 0.85  # focal length in image widths: about 61 degrees across
_CLEARNESS = np.float32(0.7)  # transmission of clear plastic
_BINS = 64  # resolution of the table of normals


@dataclass
class Buffers:
    """One frame's instruments before shading."""

    depth: Array  # float32 (H, W) in mm, infinite without an instrument
    parts: Array  # uint8 (H, W), part ids
    instances: Array  # uint8 (H, W), 1 + index of the instrument in the frame
    finish: Array  # int32 (H, W): row of the shader's table in the low 16 bits, albedo above

    @classmethod
    def empty(cls, height: int, width: int) -> "Buffers":
        shape = (height, width)
        parts, instances = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
        return cls(np.full(shape, np.inf, np.float32), parts, instances, np.zeros(shape, np.int32))


class Shader:
    """Reflection of the headlight by a look's materials, as a table over normals (a "matcap")."""

    def __init__(self, look: Look) -> None:
        axis = (np.arange(_BINS, dtype=np.float32) * 4 + 2 - 128) / 127.0
        x, y = np.meshgrid(axis, axis, indexing="ij")
        z = np.sqrt(np.maximum(1.0 - x**2 - y**2, 0.0))
        self.grid = np.stack([x.ravel(), y.ravel(), z.ravel()], 1)  # (bins^2, 3) local normals, x slowest
        self.table = np.stack([_reflect(look, m, x, y) for m in range(6)]).reshape(-1, 3)

    def lookup(self, basis: Array) -> Array:
        """Return the row of `table` for material 0 and each local normal of a plate in `basis` (3, 3)."""
        normal = self.grid @ basis[:, :2].astype(np.float32)  # (bins^2, 3) local -> (bins^2, 2) camera x, y
        bins = np.clip((normal * 127.0 + 128.0) * 0.25, 0, _BINS - 1).astype(np.int32)
        return bins[:, 0] * _BINS + bins[:, 1]

    def colours(self, finish: Array, depth: Array, behind: Array, places: Array) -> Array:
        """Return the linear light (n, 3) of n pixels; near metal is bright.

        `places` (n,) are the pixels' indices into the light `behind` (N, 3), which shines through clear plastic.
        """
        row = finish & 0xFFFF
        strength = (finish >> 16) * (48.0**2 / ALBEDO_SCALE) / np.maximum(depth * depth, 960.0)
        light = self.table[row] * strength.astype(np.float32)[:, None]
        clear = np.flatnonzero(row >= CLEAR * _BINS**2)
        light[clear] += _CLEARNESS * behind[places[clear]]
        return light


def _reflect(look: Look, material: int, x: Array, y: Array) -> Array:
    """Return the linear light (bins, bins, 3) that a material reflects, by camera-space normal (x, y)."""
    base = linear((look.shaft, look.metal, look.metal, look.accent, look.pale, look.pale)[material])
    if material == STAINED:
        base = 0.35 * base + 0.65 * linear((120, 24, 18))
    slope = np.minimum(np.sqrt(x**2 + y**2), 1.0)
    facing = np.sqrt(1.0 - slope**2)
    if look.flat:
        return (base * (0.25 + 0.75 * facing)[..., None]).astype(np.float32)
    bare = material in (METAL, STAINED)
    shine = (look.shine, 1.0, 0.6, 0.3, 0.25, 1.0)[material]
    bounce = 0.6 * linear(look.organs[0][0])
    lamp = np.exp(-((x + 0.10) ** 2 + (y + 0.14) ** 2) / (0.045 if material != DARK else 0.12))
    core = np.exp(-((x + 0.16) ** 2 + (y + 0.20) ** 2) / 0.008)  # reflex of the lamp: a bright line along a tube
    second = np.exp(-((x - 0.36) ** 2 + (y - 0.10) ** 2) / 0.02)
    rim = np.exp(-(((slope - 0.80) / 0.13) ** 2))
    # bare metal mirrors its dark surroundings; plastic reflects light from its whole face
    if material == CLEAR:
        base = base * 0.2
    diffuse = base * (0.06 + 0.42 * facing**2 if bare else 0.05 + 0.75 * facing**1.6)[..., None]
    mirror = (1.5 * lamp + 0.5 * second)[..., None] * (0.3 + 0.7 * base) * shine
    mirror += (core * (0.5 * shine + 0.04))[..., None]
    return (diffuse + mirror + bounce * ((0.45 * shine + 0.06) * rim)[..., None]).astype(np.float32)


def draw(buffers: Buffers, poses: tuple[Pose, ...], tools: Mapping[str, Tool], shader: Shader) -> None:
    """Draw the instruments of `poses` with the plates of `tools` (by kind); nearer parts hide farther ones."""
    for number, pose in enumerate(poses, start=1):
        painter = _Painter(buffers, shader, pose.size, number)
        kit, hinge, plates = tools[pose.kind], pose.hinge, tools[pose.kind].jaws
        elbow = pose.joint + pose.wrist * kit.wrist_length * pose.size
        side = pose.hinge * 0.6 * pose.size
        if kit.solid and hinge.dot(pose.joint) > 0.0:  # the camera sees the other side
            hinge, plates = -hinge, plates[::-1]
        painter.place(SHAFT, kit.shaft, pose.joint, pose.shaft)
        if kit.ear is not None:
            _place_ears(painter, kit.ear, pose)
        if kit.wrist is not None:
            painter.place(WRIST, kit.wrist, pose.joint, pose.wrist, hinge)
        for plate, jaw, lift in zip(plates, pose.jaws, (1.0, -1.0), strict=False):  # a tip is one jaw
            painter.place(CLASPER, plate, elbow + lift * side, jaw, hinge)


def _place_ears(painter: "_Painter", plate: Plate, pose: Pose) -> None:
    """Draw a clevis' ears on both sides of the wrist, within the shaft's outline; from its edge, an ear is a prong."""
    axis = cross(pose.hinge, pose.wrist)  # axis of the wrist
    view = pose.joint / np.sqrt(pose.joint.dot(pose.joint))
    deep = float(axis.dot(view))
    aside = axis - deep * view
    breadth = min(1.0, (RADIUS - EARS * float(np.sqrt(aside.dot(aside)))) / EAR)
    for side in (-1.0, 1.0):
        place = side * (EARS * aside + 2.0 * deep * view) - 2.0 * (1.0 - abs(deep)) * view
        painter.place(SHAFT, plate, pose.joint + pose.size * place, pose.shaft, squeeze=breadth)


def _basis(origin: Array, along: Array, hinge: Array | None) -> Array:
    """Return a plate's unit vectors along, across and towards the viewer as rows (3, 3).

    The plate turns only half-way with its hinge, because parts are solid and do not vanish from the side.
    """
    face = origin.dot(along) * along - origin
    face = face / np.sqrt(face.dot(face))
    if hinge is not None:
        face = face + (hinge - hinge.dot(along) * along)
        face = face / np.sqrt(face.dot(face))
    return np.stack([along, cross(face, along), face])


@dataclass(frozen=True)
class _Painter:
    buffers: Buffers
    shader: Shader
    size: float  # factor of all lengths
    number: int  # 1 + index of the instrument

    def place(
        self, part: int, plate: Plate, origin: Array, along: Array, hinge: Array | None = None, squeeze: float = 1.0
    ) -> None:
        """Draw a plate with its joint at `origin` (mm), its x axis `along`, and its breadth times `squeeze`."""
        height, width = self.buffers.parts.shape
        basis = _basis(origin, along, hinge)
        forward = _projection(plate, origin, basis * ((1.0,), (squeeze,), (1.0,)), self.size, width, height)
        window = _window(forward, plate.cover.shape, width, height)
        if window is None:
            return
        x0, y0, x1, y1 = window
        forward = np.array([[1.0, 0.0, -x0], [0.0, 1.0, -y0], [0.0, 0.0, 1.0]]) @ forward
        shape = (x1 - x0, y1 - y0)
        cover = cv2.warpPerspective(plate.cover, forward, shape, flags=cv2.INTER_NEAREST)
        surface = cv2.warpPerspective(plate.surface, forward, shape, borderMode=cv2.BORDER_REPLICATE)
        region = (slice(y0, y1), slice(x0, x1))
        # the plate's plane n.p = n.origin meets the ray (x, y, 1) z at z = n.origin / n.(x, y, 1)
        slant = basis[2] / (FOCAL * width)
        across = (slant[0] * (np.arange(x0, x1) - width / 2)).astype(np.float32)
        down = (slant[1] * (np.arange(y0, y1) - height / 2) + basis[2, 2]).astype(np.float32)
        with np.errstate(divide="ignore"):  # a ray along the plate meets it at infinity, which is clipped below
            depth = np.float32(basis[2].dot(origin)) / (across + down[:, None])
        depth += surface[..., 2] * np.float32(basis[2, 2] * self.size / HEIGHT_SCALE)
        np.clip(depth, 8.0, NEAREST - 1.0, out=depth)
        front = (cover > 0) & (depth < self.buffers.depth[region])
        inside = np.flatnonzero(front)
        # little endian: normal x and y, height, albedo
        pixel = surface.view(np.dtype("<u4")).ravel()[inside].astype(np.int32)
        normal = ((pixel & 0xFC) << 4) | ((pixel >> 10) & 0x3F)
        row = self.shader.lookup(basis)[normal] + (cover.ravel()[inside].astype(np.int32) - 1) * _BINS**2
        self.buffers.finish[region][front] = row | (((pixel >> 24) & 0xFF) << 16)
        np.copyto(self.buffers.depth[region], depth, where=front)
        np.copyto(self.buffers.parts[region], np.uint8(part), where=front)
        np.copyto(self.buffers.instances[region], np.uint8(self.number), where=front)


def _projection(plate: Plate, origin: Array, basis: Array, size: float, width: int, height: int) -> Array:
    """Return the homography (3, 3) from plate pixels to image pixels; its third row gives depth in mm."""
    focal = FOCAL * width
    camera = np.array([[focal, 0.0, width / 2], [0.0, focal, height / 2], [0.0, 0.0, 1.0]])
    step = size / plate.scale
    corner = origin - step * (plate.origin[0] * basis[0] + plate.origin[1] * basis[1])
    return camera @ np.stack([basis[0] * step, basis[1] * step, corner], 1)


def _window(forward: Array, shape: tuple[int, int], width: int, height: int) -> tuple[int, int, int, int] | None:
    """Return the image rectangle (x0, y0, x1, y1) of a plate, or None if it is out of sight."""
    h, w = shape
    corners = _clip_near(forward @ np.array([[0.0, w, w, 0.0], [0.0, 0.0, h, h], [1.0, 1.0, 1.0, 1.0]]))
    if corners.shape[1] == 0:
        return None
    x, y = corners[:2] / corners[2]
    x0, y0 = max(0, int(x.min())), max(0, int(y.min()))
    x1, y1 = min(width, int(x.max()) + 2), min(height, int(y.max()) + 2)
    return (x0, y0, x1, y1) if x0 < x1 and y0 < y1 else None


def _clip_near(corners: Array, near: float = 6.0) -> Array:
    """Cut a quadrilateral (3, 4) of homogeneous points at depth `near` mm."""
    points = []
    for i in range(4):
        a, b = corners[:, i], corners[:, (i + 1) % 4]
        if a[2] >= near:
            points.append(a)
        if (a[2] >= near) != (b[2] >= near):
            points.append(a + (b - a) * ((near - a[2]) / (b[2] - a[2])))
    return np.stack(points, 1) if points else np.zeros((3, 0))
