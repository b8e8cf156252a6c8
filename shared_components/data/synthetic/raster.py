"""Placing instrument plates in space: perspective, occlusion, shading of metal under a headlight."""

from dataclasses import dataclass

import cv2
import numpy as np

from shared_components.data.synthetic.carving import ALBEDO_SCALE, HEIGHT_SCALE, Plate
from shared_components.data.synthetic.instruments import CLASPER, SHAFT, WRIST, tool
from shared_components.data.synthetic.looks import Look
from shared_components.data.synthetic.motion import Pose
from shared_components.data.synthetic.noise import linear

Array = np.ndarray

FOCAL = 0.85  # focal length in image widths: about 61 degrees across
_BINS = 64  # resolution of the table of normals


@dataclass
class Buffers:
    """One frame's instruments.

    Attributes:
        colour: (H, W, 3) float32 linear light.
        depth: (H, W) float32 mm, infinite where there is no instrument.
        parts: (H, W) uint8 part ids.
        instances: (H, W) uint8, 1 + position of the instrument in the frame.
    """

    colour: Array
    depth: Array
    parts: Array
    instances: Array

    @classmethod
    def empty(cls, height: int, width: int) -> "Buffers":
        return cls(
            np.zeros((height, width, 3), np.float32),
            np.full((height, width), np.inf, np.float32),
            np.zeros((height, width), np.uint8),
            np.zeros((height, width), np.uint8),
        )


class Shader:
    """How a look's materials reflect the headlight, as a table over normals (a "matcap")."""

    def __init__(self, look: Look, *, stain: float) -> None:
        axis = (np.arange(_BINS, dtype=np.float32) * 4 + 2 - 128) / 127.0
        x, y = np.meshgrid(axis, axis, indexing="ij")
        self.grid = np.stack([x.ravel(), y.ravel()], 1)  # (bins^2, 2) local normals, x slowest
        self.grid_z = np.sqrt(np.maximum(1.0 - (self.grid**2).sum(1), 0.0))
        self.table = np.stack([_reflect(look, m, x, y, stain) for m in range(4)]).reshape(-1, 3)

    def lookup(self, basis: Array) -> Array:
        """Return the row of `table` (of material 0) for each local normal of a plate in `basis` (3, 3)."""
        normal = self.grid @ basis[:2, :2] + self.grid_z[:, None] * basis[2, :2]
        bins = np.clip((normal * 127.0 + 128.0) * 0.25, 0, _BINS - 1).astype(np.int32)
        return bins[:, 0] * _BINS + bins[:, 1]


def _reflect(look: Look, material: int, x: Array, y: Array, stain: float) -> Array:
    """Return the (bins, bins, 3) linear light that a material returns for camera-space normals (x, y)."""
    colour = (look.shaft, look.metal, look.metal, look.accent)[material]
    base = linear(colour)
    if material == 2:
        base = base * (1.0 - stain) + stain * linear((120, 24, 18))
    slope = np.minimum(np.sqrt(x**2 + y**2), 1.0)
    facing = np.sqrt(1.0 - slope**2)
    if look.flat:
        return (base * (0.25 + 0.75 * facing)[..., None]).astype(np.float32)
    bounce = linear(look.organs[0][0]) * 0.5
    shine = 0.10 if material == 0 else (0.25 if material == 3 else 1.0)
    lamp = np.exp(-(((x + 0.12) ** 2 + (y + 0.16) ** 2) / (0.05 if material else 0.10)))
    second = np.exp(-(((x - 0.38) ** 2 + (y - 0.12) ** 2) / 0.03))
    rim = np.exp(-(((slope - 0.86) / 0.12) ** 2))
    diffuse = base * (0.10 + 0.55 * facing**2)[..., None]
    mirror = (0.9 * lamp + 0.35 * second)[..., None] * (0.4 + 0.6 * base) * shine
    return (diffuse + mirror + bounce * (0.35 * shine * rim)[..., None]).astype(np.float32)


def draw(buffers: Buffers, poses: tuple[Pose, ...], shader: Shader, *, scale: float) -> None:
    """Draw the instruments with plates of `scale` pixels per mm; nearer parts hide farther ones."""
    for number, pose in enumerate(poses, start=1):
        kit = tool(pose.kind, scale)
        size = pose.size
        elbow = pose.joint + pose.wrist * kit.wrist_length * size
        side = pose.hinge * 0.6 * size
        _place(buffers, kit.shaft, pose.joint, pose.shaft, None, size, shader, SHAFT, number)
        _place(buffers, kit.wrist, pose.joint, pose.wrist, pose.hinge, size, shader, WRIST, number)
        for plate, jaw, lift in zip(kit.jaws, pose.jaws, (1.0, -1.0), strict=True):
            _place(buffers, plate, elbow + lift * side, jaw, pose.hinge, size, shader, CLASPER, number)


def _basis(origin: Array, along: Array, hinge: Array | None) -> Array:
    """Return rows U (along), V (across), N (towards the viewer) of a plate.

    The plate turns only half-way with its hinge: parts are solid, and never vanish when seen from the side.
    """
    view = origin / np.sqrt(origin.dot(origin))
    face = -view + view.dot(along) * along
    face = face / np.sqrt(face.dot(face))
    if hinge is not None:
        face = 0.5 * face + 0.5 * (hinge - hinge.dot(along) * along)
        face = face / np.sqrt(face.dot(face))
    return np.stack([along, np.cross(face, along), face])


def _place(
    buffers: Buffers,
    plate: Plate,
    origin: Array,
    along: Array,
    hinge: Array | None,
    size: float,
    shader: Shader,
    part: int,
    number: int,
) -> None:
    """Draw one plate whose joint is at `origin` (mm) and whose x axis points `along`."""
    height, width = buffers.parts.shape
    basis = _basis(origin, along, hinge)
    window, inverse = _window(plate, origin, basis, size, width, height)
    if window is None:
        return
    x0, y0, x1, y1 = window
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    shape = (x1 - x0, y1 - y0)
    cover = cv2.warpPerspective(plate.cover, inverse, shape, flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP)
    rows, columns = np.nonzero(cover)
    if len(rows) == 0:
        return
    surface = cv2.warpPerspective(plate.surface, inverse, shape, flags=flags, borderMode=cv2.BORDER_REPLICATE)
    surface, material = surface[rows, columns], cover[rows, columns]
    rows, columns = rows + y0, columns + x0
    focal = FOCAL * width
    ray = basis[2, 0] / focal * (columns - width / 2) + (
        basis[2, 1] / focal * (rows - height / 2) + basis[2, 2]
    )
    depth = basis[2].dot(origin) / ray + surface[:, 2] * (basis[2, 2] * size / HEIGHT_SCALE)
    depth = np.clip(depth, 8.0, 63.0).astype(np.float32)
    front = np.flatnonzero(depth < buffers.depth[rows, columns])
    rows, columns, depth, surface = rows[front], columns[front], depth[front], surface[front]
    normal = (surface[:, 0] >> 2).astype(np.int32) * _BINS + (surface[:, 1] >> 2)
    entry = shader.lookup(basis)[normal] + (material[front].astype(np.int32) - 1) * _BINS**2
    strength = surface[:, 3] * np.minimum((48.0 / depth) ** 2, 2.4) * np.float32(1.0 / ALBEDO_SCALE)
    buffers.colour[rows, columns] = shader.table[entry] * strength[:, None]
    buffers.depth[rows, columns] = depth
    buffers.parts[rows, columns] = part
    buffers.instances[rows, columns] = number


def _window(
    plate: Plate, origin: Array, basis: Array, size: float, width: int, height: int
) -> tuple[tuple[int, int, int, int] | None, Array]:
    """Return the visible pixel rectangle of a plate and the map from it to plate pixels (3, 3)."""
    focal = FOCAL * width
    camera = np.array([[focal, 0.0, width / 2], [0.0, focal, height / 2], [0.0, 0.0, 1.0]])
    step = size / plate.scale
    corner = origin - step * (plate.origin[0] * basis[0] + plate.origin[1] * basis[1])
    forward = camera @ np.stack([basis[0] * step, basis[1] * step, corner], 1)
    h, w = plate.cover.shape
    corners = forward @ np.array([[0.0, w, w, 0.0], [0.0, 0.0, h, h], [1.0, 1.0, 1.0, 1.0]])
    corners = _clip_near(corners)
    if corners.shape[1] == 0:
        return None, forward
    x, y = corners[:2] / corners[2]
    x0, y0 = max(0, int(np.floor(x.min()))), max(0, int(np.floor(y.min())))
    x1, y1 = min(width, int(np.ceil(x.max())) + 1), min(height, int(np.ceil(y.max())) + 1)
    if x0 >= x1 or y0 >= y1:
        return None, forward
    shift = np.array([[1.0, 0.0, x0], [0.0, 1.0, y0], [0.0, 0.0, 1.0]])
    return (x0, y0, x1, y1), np.linalg.inv(forward) @ shift


def _clip_near(corners: Array, near: float = 6.0) -> Array:
    """Cut a quadrilateral (3, 4) of homogeneous points at depth `near` mm."""
    kept = []
    for i in range(4):
        a, b = corners[:, i], corners[:, (i + 1) % 4]
        if a[2] >= near:
            kept.append(a)
        if (a[2] >= near) != (b[2] >= near):
            kept.append(a + (b - a) * ((near - a[2]) / (b[2] - a[2])))
    return np.stack(kept, 1) if kept else np.zeros((3, 0))
