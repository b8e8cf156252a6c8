"""The sites of a comparison: the user's, or synthetic ones that are hard on purpose."""

from __future__ import annotations

from pathlib import Path

from shared_components.comparison.plan import Scale
from shared_components.data.synthetic.site import write_site

LOOKS = ("rose", "crimson", "violet")
HELD_OUT_LOOK = "ivory"
LAYOUTS = ("endovis2017", "endovis2018", "endovis2017")
HELD_OUT = "held-out"


def synthetic_sites(folder: Path, scale: Scale) -> tuple[dict[str, Path], Path]:
    """Render the sites that are not there yet: looks far apart, little data, the last site odd and poor.

    site-1 is pink under white light, site-2 dark and bloody; site-3 is pale violet through a circular aperture
    with pale shafts, and has half of their frames. The held-out site is beige bowel in smoke, a look that no
    site trains on.

    Returns:
        The sites' site.yaml by name, and the held-out site's.
    """
    plans = [
        (f"site-{i + 1}", *plan) for i, plan in enumerate(zip(LOOKS, LAYOUTS, scale.videos, strict=True))
    ]
    plans.append((HELD_OUT, HELD_OUT_LOOK, "endovis2017", (1, 1, scale.videos[0][2])))
    files = {}
    for number, (name, look, layout, videos) in enumerate(plans):
        files[name] = folder / name / "site.yaml"
        if not files[name].is_file():
            write_site(
                folder / name,
                look=look,
                seed=100 + number,
                layout=layout,
                videos=dict(zip(("train", "validation", "test"), videos, strict=True)),
                frames_per_video=scale.frames_per_video,
                height=scale.height,
                width=scale.width,
            )
    held_out = files.pop(HELD_OUT)
    return files, held_out


def own_sites(folder: Path, held_out: str) -> tuple[dict[str, Path], Path | None]:
    """Find ``<folder>/<site>/site.yaml``; the one called ``held_out`` takes no part in training.

    Raises:
        ValueError: There is none, or none of that name.
    """
    files = {path.parent.name: path.resolve() for path in sorted(folder.glob("*/site.yaml"))}
    if held_out and held_out not in files:
        raise ValueError(f"{folder}: holds no site {held_out!r}; there are {', '.join(files) or 'none'}")
    apart = files.pop(held_out) if held_out else None
    if not files:
        raise ValueError(f"{folder}: holds no <site>/site.yaml; give the folder with one folder per site")
    return files, apart
