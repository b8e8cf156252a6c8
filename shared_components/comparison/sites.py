"""The sites of a comparison: the user's, or synthetic ones that are hard on purpose."""

from __future__ import annotations

from pathlib import Path

from shared_components.comparison.plan import HELD_OUT, Scale
from shared_components.data.synthetic.site import write_site
from shared_components.federation.messages import folder_name

LOOKS = ("narrowband", "fluorescence", "fibrescope")
HELD_OUT_LOOK = "ivory"
LAYOUTS = ("endovis2017", "endovis2018", "endovis2017")
RESERVED = ("server", HELD_OUT)  # folders of a run beside its sites'


def synthetic_sites(folder: Path, scale: Scale) -> tuple[dict[str, Path], Path]:
    """Render the sites that are not there yet: looks far apart, little data, the last site odd and poor.

    site-1 sees by narrow-band light, site-2 a fluorescent dye in near-infrared; site-3 looks through a bundle of fibres
    behind a small round aperture, and has half of their frames. None of these is like what the shipped weights have
    learnt from. The held-out site is beige bowel in smoke, a look that no site trains on.

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
    """Find ``<folder>/<site>/site.yaml``; the one that ``held_out`` names takes no part in training.

    Args:
        folder: The sites' folder.
        held_out: One of the sites, or the path of a site.yaml elsewhere; empty for none.

    Raises:
        ValueError: There is no site, or none of that name, or a name cannot be a site's.
    """
    files = {path.parent.name: path.resolve() for path in sorted(folder.glob("*/site.yaml"))}
    apart = files.pop(held_out, None) or _elsewhere(held_out)
    if held_out and apart is None:
        raise ValueError(
            f"{folder}: holds no site {held_out!r}; there are {', '.join(files) or 'none'}, "
            "and no site.yaml has that path"
        )
    if not files:
        raise ValueError(f"{folder}: holds no <site>/site.yaml to train on; give the folder of the sites")
    for name in files:
        folder_name("site", name)
        if name in RESERVED:
            raise ValueError(f"{folder / name}: a site cannot be called {name!r} here; rename its folder")
    return files, apart


def _elsewhere(held_out: str) -> Path | None:
    path = Path(held_out).expanduser()
    path = path / "site.yaml" if held_out and path.is_dir() else path
    return path.resolve() if path.is_file() else None
