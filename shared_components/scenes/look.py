"""Appearance of a synthetic site's videos: everything that differs between hospitals except instrument geometry.

Colours are sRGB triples (0..255) as a person would pick them from a picture.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal

RGB = tuple[int, int, int]
Texture = Literal["membrane", "lobular", "tubular", "muscle", "plain"]
Organs = tuple[tuple[RGB, Texture], ...]


@dataclass(frozen=True, kw_only=True)
class Look:
    """Describe how one site's videos appear.

    Attributes:
        organs: (colour, texture) of the background and then of the organs laid over it.
        vessels, vessel: how many vessel trees (1 = usual) and their colour.
        blood: share of the tissue that is bloody (0..1).
        gauze, thread: the chance that a video shows a swab or a suture thread, which are as white, grey or
            thin as instruments and are not instruments.
        light: colour of the light source; exposure: overall gain; vignette: darkening of the corners (0..1).
        cavity: how dark the depths are that the light does not reach (0..1).
        gloss, glint: strength of tissue highlights, and their size (small is wet and sharp).
        haze: constant veil (0..1); smoke: additional smoke while tissue is coagulated (0..1).
        noise: sensor noise in grey levels; blur: sigma of the optics in thousandths of the width.
        aperture: shape of the visible field; field: radius of a round one in longer sides of the picture, (least,
            most), or the aperture's own.
        shaft, metal, accent, pale: instrument materials; shine: how the shafts' reflects (0 dull, 1 as metal);
            steel, painted, coat: the chance that a tool's shaft is of bare metal, that it is pale or coloured
            instead, that its jaws are coated like its shaft; tarnish: share of metal stained by blood (0..1).
        fine: strength of the tissue's finest texture (1 = usual).
        compression: JPEG quality of the recording; 0: none.
        tint: how strongly the camera shows everything in one hue (0..1); hue: that one.
        fibres: how many optical fibres carry the picture across its width, each seen as a dot; 0: none.
        custom: who operates and with what, one of `toolbox.CUSTOMS`.
        real: whether instruments have the proportions of real ones, see `toolbox.tool`.
        ground: what lies behind the instruments, one of `grounds.GROUNDS`; for an eye the organs are lids or drape,
            sclera, iris and pupil, for a hollow organ its wall.
        bands: how many smooth, long organs lie over the others.
        empty: the chance that a phase of the operation shows no instrument.
        lamp: how far the light is from the camera, (least, most): 0 shines straight on.
        barrel: wide-angle distortion, k of `recording.distortion`; 0: none.
        recorder: what the recorder draws over the picture, of `recording.RECORDED`.
        flat: computer-graphics shading without texture, wetness or noise.
        things: what lies on the tissue where nothing else is asked for, of `anatomy.THINGS`.
        operation: what is operated where nothing else is asked for, of `operations.OPERATIONS`.
    """

    name: str
    text: str
    organs: Organs
    vessel: RGB = (120, 18, 22)
    vessels: float = 1.0
    blood: float = 0.15
    gauze: float = 0.0
    thread: float = 0.3
    light: RGB = (255, 250, 245)
    exposure: float = 1.0
    contrast: float = 1.0
    vignette: float = 0.5
    cavity: float = 0.0
    gloss: float = 1.0
    glint: float = 0.10
    haze: float = 0.0
    smoke: float = 0.35
    noise: float = 2.5
    blur: float = 1.6
    aperture: Literal["full", "circle", "corners", "octagon"] = "full"
    shaft: RGB = (52, 52, 54)
    metal: RGB = (196, 198, 204)
    accent: RGB = (205, 185, 140)
    pale: RGB = (226, 226, 222)
    shine: float = 0.16
    steel: float = 0.0
    coat: float = 0.0
    painted: float = 0.0
    tarnish: float = 0.15
    fine: float = 1.0
    compression: int = 0
    tint: float = 0.0
    hue: RGB = (255, 255, 255)
    fibres: int = 0
    field: tuple[float, float] | None = None
    custom: str = "fixed"
    real: bool = False
    ground: str = "organs"
    bands: int = 0
    empty: float = 0.0
    lamp: tuple[float, float] = (0.15, 0.4)
    barrel: float = 0.0
    recorder: tuple[str, ...] = ()
    flat: bool = False
    things: tuple[str, ...] = ()
    operation: str = ""

    @property
    def stream(self) -> int:
        """Number of the look's random stream: stable when looks are added or reordered."""
        return zlib.crc32(self.name.encode())
