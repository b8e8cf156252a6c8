"""Endoscopic video with exact labels."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shared_components.data.synthetic import instruments
from shared_components.data.synthetic.endoscope import Endoscope
from shared_components.data.synthetic.looks import Look, look_named
from shared_components.data.synthetic.motion import Moment, Script
from shared_components.data.synthetic.noise import stream
from shared_components.data.synthetic.raster import Buffers

Array = np.ndarray

_GEOMETRY, _APPEARANCE, _DETAIL = 0, 1, 3
"""Random streams: the first is shared by all looks, the others are the look's own; the last one moves no label."""


@dataclass(frozen=True)
class SceneFrame:
    """One frame with its labels.

    Attributes:
        image: (H, W, 3) uint8 RGB.
        parts: (H, W) uint8: 0 background, 1 shaft, 2 wrist, 3 clasper.
        instances: (H, W) uint8: 0, or 1 + position of the instrument in `tools`.
        depth: (H, W) float32, distance from the camera in mm; 0 outside the aperture.
        phase: index into `motion.PHASES`.
        tools: names of the visible instruments, e.g. "Left_Prograsp_Forceps".
        actions: (instrument, verb, target) of each visible instrument.
        gesture: SAR-RARP50 action 0..7 (0 outside suturing).
    """

    image: Array
    parts: Array
    instances: Array
    depth: Array
    phase: int
    tools: tuple[str, ...]
    actions: tuple[tuple[str, str, str], ...]
    gesture: int


def render_video(
    look: str, seed: int, *, frames: int, height: int = 256, width: int = 320, rate: float = 2.0
) -> Iterator[SceneFrame]:
    """Render `frames` consecutive frames of one video.

    The labels of `looks.LOOKS` depend on the seed, the size, the number of frames and the rate, not on the look; a
    look with an aperture hides what lies outside it, and there parts and depth are 0. A random look has instruments
    of its own. Equal arguments give equal bits.

    Args:
        look: one of `looks.LOOKS`, or "random-<number>", drawn from that number.
        seed: non-negative number of the video.
        frames: length of the video; the surgery's phases are spread over it.
        height, width: at least 64 pixels each.
        rate: frames per second (2 as in EndoVis; more for smooth motion).

    Raises:
        ValueError: on an unknown look, a negative seed or sizes that are too small.
    """
    chosen = look_named(look)
    if seed < 0 or frames < 1 or rate <= 0:
        raise ValueError(f"seed {seed} must be >= 0, frames {frames} >= 1 and rate {rate} > 0")
    if height < 64 or width < 64:
        raise ValueError(f"frames of {height}x{width} (height x width) are too small; both must be at least 64")
    return _frames(chosen, seed, frames, height, width, rate)


def _frames(look: Look, seed: int, frames: int, height: int, width: int, rate: float) -> Iterator[SceneFrame]:
    script = Script(stream(seed, _GEOMETRY), frames=frames, rate=rate, custom=look.custom)
    # its own stream goes on after all of a robot's tools, held or not, and its depths follow from that
    kinds = instruments.KINDS if look.custom == "fixed" else script.kinds
    rng, detail = (stream(seed, number, look.stream) for number in (_APPEARANCE, _DETAIL))
    camera = Endoscope(look, rng, detail, height, width, kinds)
    for index in range(frames):
        moment = script.moment(index)
        yield _label(*camera.shoot(moment), moment)


def _label(image: Array, depth: Array, buffers: Buffers, moment: Moment) -> SceneFrame:
    """Name what is visible; instruments that are hidden or outside the frame drop out of the labels."""
    count = np.bincount(buffers.instances.ravel(), minlength=len(moment.poses) + 1)
    visible = [i for i in range(len(moment.poses)) if count[i + 1] > 0]
    renumber = np.zeros(256, np.uint8)
    for position, i in enumerate(visible, start=1):
        renumber[i + 1] = position
    poses = [moment.poses[i] for i in visible]
    target = "needle" if moment.phase == 3 else "tissue"
    return SceneFrame(
        image=image,
        parts=buffers.parts,
        instances=renumber[buffers.instances],
        depth=depth.astype(np.float32, copy=False),
        phase=moment.phase,
        tools=tuple(pose.name for pose in poses),
        actions=tuple((pose.name, pose.verb, "none" if pose.verb == "idle" else target) for pose in poses),
        gesture=moment.gesture,
    )
