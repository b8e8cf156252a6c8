"""Looks of the nine parts of Endo700k, on which EndoViT and FL-EndoViT are pre-trained: organs, light, instruments.

They stand for the parts, and copy none of their frames: which procedure, which organs, a robot or straight instruments,
a round or a full picture.
"""

from __future__ import annotations

from shared_components.scenes.look import Look, Organs

# fmt: off
_COLON: Organs = (
    ((226, 178, 96), "lobular"), ((224, 136, 124), "tubular"), ((214, 120, 108), "tubular"),
    ((232, 196, 176), "membrane"),
)
_PELVIS: Organs = (
    ((196, 96, 84), "muscle"), ((222, 160, 110), "lobular"), ((228, 190, 176), "membrane"),
)
_GYNAECOLOGY: Organs = (
    ((222, 148, 140), "membrane"), ((206, 112, 112), "muscle"), ((232, 186, 160), "membrane"),
)
_PARTS = (
    Look(
        name="heico", text="colorectal laparoscopy: yellow mesentery and bowel, straight instruments",
        organs=_COLON, vessels=1.4, blood=0.12, gauze=0.25,
        light=(255, 244, 226), vignette=0.55, smoke=0.4, noise=2.5, custom="laparoscopic",
        shaft=(40, 40, 42), things=("small intestine",),
    ),
    Look(
        name="cholec80", text="cholecystectomy through a round aperture: liver and gallbladder, straight instruments",
        organs=(((128, 58, 46), "plain"), ((226, 176, 96), "lobular")), vessels=0.8, blood=0.2,
        light=(255, 238, 222), exposure=0.95, vignette=0.75, aperture="circle", noise=3.0, blur=2.0,
        custom="laparoscopic", operation="cholecystectomy",
    ),
    Look(
        name="psi_ava", text="robotic prostatectomy: red pelvic muscle and fat, a robot's wristed instruments",
        organs=_PELVIS, vessels=1.0, blood=0.4, light=(255, 240, 232), contrast=1.1, vignette=0.5, gloss=1.3,
        noise=2.0, blur=1.2, custom="robotic", shaft=(70, 72, 76), thread=0.5,
    ),
    Look(
        name="esad", text="robotic prostatectomy in another hospital: dark, bloody, compressed",
        organs=(((150, 52, 44), "muscle"), ((204, 140, 84), "lobular"), ((170, 74, 66), "plain")),
        vessels=0.7, blood=0.5, light=(255, 226, 206), exposure=0.85, contrast=1.2, vignette=0.8,
        noise=4.0, blur=2.6, compression=45, custom="robotic", shaft=(34, 34, 36), tarnish=0.4,
    ),
    Look(
        name="lapgyn4", text="gynaecological laparoscopy: uterus and pale peritoneum, straight instruments",
        organs=_GYNAECOLOGY, vessels=1.8, blood=0.1, light=(250, 246, 255), exposure=1.05, vignette=0.5,
        noise=3.5, blur=3.0, compression=60, custom="laparoscopic", shaft=(96, 98, 100), things=("uterus",),
    ),
    Look(
        name="hsdb", text="robotic gastrectomy: stomach, pancreas and fat in bright light, many instruments",
        organs=(((232, 188, 130), "lobular"), ((222, 150, 132), "membrane"), ((236, 206, 150), "lobular")),
        vessels=1.2, blood=0.15, gauze=0.4, light=(255, 255, 246), exposure=1.25, vignette=0.3, gloss=1.2,
        noise=1.5, blur=1.2, custom="mixed", shaft=(58, 58, 62), metal=(206, 208, 212),
    ),
    Look(
        name="dsad", text="robotic rectal resection: organs of the abdomen in plain sight, few instruments",
        organs=(
            ((232, 190, 168), "membrane"), ((130, 58, 48), "plain"), ((224, 144, 128), "tubular"),
            ((226, 180, 100), "lobular"),
        ),
        vessels=1.3, blood=0.04, light=(255, 250, 240), vignette=0.45, noise=2.0, custom="robotic",
        things=("small intestine",),
    ),
    Look(
        name="glenda", text="endometriosis: bluish and dark spots on pale peritoneum, cool light, cut corners",
        organs=(((226, 176, 170), "membrane"), ((96, 62, 92), "plain"), ((214, 130, 134), "membrane")),
        vessel=(110, 24, 60), vessels=2.0, blood=0.15, light=(232, 240, 255), vignette=0.65, aperture="corners",
        noise=3.0, blur=2.2, custom="laparoscopic", shaft=(150, 152, 156), things=("uterus",),
    ),
    Look(
        name="actions160", text="short clips of gynaecological laparoscopy: warm, soft and hazy, pale shafts",
        organs=(((208, 120, 104), "membrane"), ((230, 180, 140), "lobular"), ((190, 90, 88), "muscle")),
        vessels=1.0, blood=0.25, light=(255, 228, 196), exposure=0.95, haze=0.1, smoke=0.6, vignette=0.7,
        noise=4.5, blur=3.6, compression=35, custom="laparoscopic", shaft=(186, 184, 178), things=("uterus",),
    ),
)
# fmt: on
PART_LOOKS: dict[str, Look] = {look.name: look for look in _PARTS}
"""By name; `site_sets.IMAGES` has how many images each part has."""
