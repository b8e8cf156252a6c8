"""Appearance of a synthetic site's videos: all differences between hospitals except the instruments' geometry.

Colours are sRGB triples (0 to 255), as picked from a picture.
"""

import zlib
from dataclasses import dataclass
from typing import Literal

RGB = tuple[int, int, int]
Texture = Literal["membrane", "lobular", "tubular", "muscle", "plain"]
Organs = tuple[tuple[RGB, Texture], ...]


@dataclass(frozen=True, kw_only=True)
class Look:
    """Appearance of a site's videos; shares, strengths and chances are 0 to 1 unless noted."""

    name: str
    text: str  # description
    # background and tissue
    ground: str = "organs"  # key of `grounds.GROUNDS`
    organs: Organs  # background, then the organs over it; eye: lids or drape, sclera, iris, pupil; hollow organ: wall
    bands: int = 0  # number of smooth, long organs over the others
    vessel: RGB = (120, 18, 22)
    vessels: float = 1.0  # number of vessel trees, 1 = usual
    blood: float = 0.15  # share of bloody tissue
    fine: float = 1.0  # strength of the finest texture, 1 = usual
    # swab and thread: as white, grey or thin as instruments
    gauze: float = 0.0  # chance that a video shows a swab
    thread: float = 0.3  # chance that a video shows a suture thread
    things: tuple[str, ...] = ()  # default objects on the tissue, from `anatomy.THINGS`
    # light
    light: RGB = (255, 250, 245)
    exposure: float = 1.0  # overall gain
    contrast: float = 1.0
    vignette: float = 0.5  # darkening of the corners
    cavity: float = 0.0  # darkness of depths that the light does not reach
    lamp: tuple[float, float] = (0.15, 0.4)  # minimum and maximum distance of light and camera; 0: straight ahead
    gloss: float = 1.0  # strength of tissue highlights
    glint: float = 0.10  # size of tissue highlights; small is wet and sharp
    haze: float = 0.0  # constant veil
    smoke: float = 0.35  # additional smoke during coagulation
    flat: bool = False  # computer-graphics shading without texture, wetness or noise
    # camera and recorder
    noise: float = 2.5  # sensor noise in grey levels
    blur: float = 1.6  # sigma of the optics in thousandths of the width
    compression: int = 0  # JPEG quality of the recording; 0: none
    tint: float = 0.0  # share of one hue in the picture
    hue: RGB = (255, 255, 255)
    fibres: int = 0  # number of optical fibres across the width; 0: none
    aperture: Literal["full", "circle", "corners", "octagon"] = "full"
    field: tuple[float, float] | None = None  # minimum and maximum radius of a round aperture in longer sides
    barrel: float = 0.0  # wide-angle distortion k, see `recording.distortion`; 0: none
    recorder: tuple[str, ...] = ()  # overlays from `recording.OVERLAYS`
    # instruments
    technique: str = "fixed"  # key of `toolbox.TECHNIQUES`
    operation: str = ""  # default operation, from `operations.OPERATIONS`
    empty: float = 0.0  # chance that a phase of the operation shows no instrument
    real: bool = False  # whether instruments have real proportions, see `toolbox.tool`
    shaft: RGB = (52, 52, 54)
    metal: RGB = (196, 198, 204)
    accent: RGB = (205, 185, 140)
    pale: RGB = (226, 226, 222)
    shine: float = 0.16  # reflection of the shafts; 0: dull, 1: metal
    steel: float = 0.0  # chance that a shaft is bare metal
    painted: float = 0.0  # chance that a shaft is pale or coloured
    coat: float = 0.0  # chance that jaws are coated like the shaft
    tarnish: float = 0.15  # share of metal stained by blood

    @property
    def stream(self) -> int:
        """Number of the look's random stream, which does not depend on other looks."""
        return zlib.crc32(self.name.encode())
