"""Make the documents' pictures from rendered scenes: `make pictures`.

    sites.webp     three rendered sites, two with masks and one with depth
    scenes.webp    animated: a video at four hospitals, and the masks of a federation's models
    methods.webp   test frames by methods, as in the page of `surgfl compare`
    report.webp    the top of the report of `make demo`, which must have run
    domains.webp   a scene in the demo's domains and in a realistic domain, before and after training
    corrected.webp the five frames of docs/tutorials/first-federation.md, as predicted and as corrected
    gained.webp    frames of the tutorial's third videos, segmented by the tutorial's models
    ../../examples/python.ipynb  the notebook's outputs

All pictures follow from the seeds below. An existing comparison or tutorial is not trained again. methods.webp and
report.webp are screenshots and need Chromium (see tests/browser.py); other versions may draw letters differently.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import surgfl
from shared_components.cli import main as command
from shared_components.common.atomic import atomically, write_text
from shared_components.common.drawing.palette import class_entries
from shared_components.common.drawing.pictures import GAP, captioned, legend, overlay, resized, side_by_side
from shared_components.core.evaluation import network_input
from shared_components.core.shipped_weights import shipped_weights
from shared_components.core.trained_model import load_trained
from shared_components.data.files.classes import CLASS_MAPS
from shared_components.data.files.nifti import label_frames
from shared_components.experiments.comparison.plan import HELD_OUT, SCORES
from shared_components.inference.predict import Predictor
from shared_components.scenes.scene import render_video
from tests.browser import WIDE, executable
from tests.docs.notebook import executed
from tests.docs.rules import blocks_of

SITES = [
    "--looks", "rose,narrowband,amber", "--tasks", "segmentation,segmentation,depth", "--seed", "1",
    "--frames", "6", "--videos", "1,1,1", "--height", "160", "--width", "200",
]  # fmt: skip
COMPARISON = [
    "--methods", "local,fedavg,fedrep,fedbn,pfedsis", "--scale", "small", "--size", "128x160", "--rounds", "5",
    "--seeds", "1",
]  # fmt: skip
DEMO = Path("demo")
REAL_LOOKING = "surgery-5"  # looks like a real laparoscopy: smooth organs, wet light
SCENE_SEED = 7  # look of the animated video; no site has it
FRAMES, RATE = 40, 8  # frames per second of the animated video
COLUMN = 224  # pixels
GAINED = 12  # frame of the tutorial's unlabelled videos in the picture
QUALITY, SHOT_QUALITY = 55, 88  # WebP quality, animated and still
REPORT_HEIGHT = 1180  # height of the report's top in the picture, in pixels


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--work", type=Path, default=Path("build/pictures"), help="sites, runs and pages")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--only", nargs="*", choices=PICTURES, help="default: all")
    args = parser.parse_args()
    for name in args.only or PICTURES:
        PICTURES[name](args.work, args.out / name)
        print(f"{args.out / name}: {(args.out / name).stat().st_size / 1000:.0f} kB", flush=True)


def sites(work: Path, out: Path) -> None:
    """Render three small sites and their contact sheet."""
    sheet = work / "sites.png"
    _command("render", "--out", str(work / "sites"), *SITES, "--preview", str(sheet))
    _save(Image.open(sheet), out)


def scenes(work: Path, out: Path) -> None:
    """Draw one operation as seen by four hospitals, with the masks of each hospital's model."""
    run = _pfedsis(work)
    folder = work / "comparison" / "sites" / "small"
    models = {path.parent.name: run / path.parent.name / "best.safetensors" for path in folder.glob("*/site.yaml")}
    models[HELD_OUT] = next((run / "server").glob("outsider*.safetensors"), run / "server" / "model.safetensors")
    columns = [
        list(_column(name, models[name], json.loads((folder / name / "render.json").read_text("utf-8"))["look"]))
        for name in sorted(models, key=lambda name: (name == HELD_OUT, name))
    ]
    pictures = [Image.fromarray(_laid_out(moment)) for moment in zip(*columns, strict=True)]
    with atomically(out) as part:
        pictures[0].save(
            part, "WEBP", save_all=True, append_images=pictures[1:], duration=1000 // RATE, loop=0,
            quality=QUALITY, method=6,
        )  # fmt: skip


def methods(work: Path, out: Path) -> None:
    """Take a screenshot of the grid of frames, with one frame of each site."""
    _comparison(work)
    with _page(work / "comparison" / "index.html", 2 * WIDE) as page:
        # the middle frame of each site's three, and letters that stay legible in a smaller picture
        page.add_style_tag(
            content=".frames tbody tr:not(.site):not(:nth-child(3)), .frames th .what { display: none; } "
            "main { max-width: none; } .frames { font-size: 15px; } .frames img { width: 160px; }"
        )
        top = page.locator(".legend:has(.key)").bounding_box()
        grid = page.locator(".frames").bounding_box()
        assert top and grid
        bottom = grid["y"] + grid["height"] + 8
        _photograph(page, out, (grid["x"] - 8, top["y"] - 8, grid["width"] + 16, bottom - top["y"] + 8))


def report(work: Path, out: Path) -> None:
    """Take a screenshot of the top of the demo's report."""
    with _page(_demo("ws/report/index.html"), WIDE) as page:
        _photograph(page, out, (0, 0, WIDE, REPORT_HEIGHT))


def domains(work: Path, out: Path) -> None:
    """Draw one scene in several domains: the frame, and the masks of the shipped weights and of a site's model."""
    models = {f"site-{n}": _demo(f"ws/models/site-{n}/best.safetensors") for n in (1, 2, 3)}
    looks = {name: json.loads(_demo(f"data/{name}/render.json").read_text("utf-8"))["look"] for name in models}
    models["not in the demo"], looks["not in the demo"] = _demo("ws/models/server/model.safetensors"), REAL_LOOKING
    columns = []
    for name, model in models.items():
        image = next(render_video(looks[name], SCENE_SEED, frames=1, height=192, width=256, rate=RATE)).image
        cells = [captioned(resized(image, COLUMN), f"{name}: {looks[name]}")]
        for what, weights in (("before", shipped_weights("pfedsis")), ("after", model)):
            trained = load_trained(weights, bundle="pfedsis")
            _, mask = Predictor(trained.network, trained.task)(
                network_input(image[None], *trained.size), image.shape[:2]
            )
            cells.append(captioned(overlay(resized(image, COLUMN), resized(mask, COLUMN)), what))
        columns.append(np.concatenate(cells))
    _save(Image.fromarray(_laid_out(columns)), out)


def corrected(work: Path, out: Path) -> None:
    """Draw a hospital's five frames with the masks of the shipped weights and the corrected masks."""
    folder = _tutorial(work)
    shipped = surgfl.load()
    frames = _read(folder / "scenes/hospital-a/endovis2017/instrument_dataset_1/left_frames", every=4)
    labels = label_frames(folder / "hospital-a/nifti/labels/left_frames.nii.gz")
    rows = {"frame": [], "predicted": [], "corrected": []}
    for frame, label in zip(frames, labels, strict=True):
        rows["frame"].append(frame)
        rows["predicted"].append(overlay(frame, shipped.segment(frame).mask))
        rows["corrected"].append(overlay(frame, label.astype(np.uint8)))
    _save(_table([[captioned(resized(one, COLUMN), name) for one in row] for name, row in rows.items()]), out)


def gained(work: Path, out: Path) -> None:
    """Draw a frame of each hospital's third video with the masks and the mean Dice of each model of the tutorial."""
    folder = _tutorial(work)
    rows = []
    for name in ("hospital-a", "hospital-b"):
        frame = _read(folder / f"scenes/{name}/endovis2017/instrument_dataset_3/left_frames", every=1)[GAINED]
        row = [captioned(resized(frame, COLUMN), f"{name}: frame {GAINED}")]
        files = {
            "received": None, "alone": folder / f"alone/{name}/model.safetensors",
            "together": folder / f"ws/models/{name}/best.safetensors",
        }  # fmt: skip
        for model, file in files.items():
            dice = json.loads((folder / f"scores/{model}/{name}/metrics.json").read_text("utf-8"))["dice"]["mean"]
            tinted = overlay(frame, surgfl.load(file).segment(frame).mask)
            row.append(captioned(resized(tinted, COLUMN), f"{model}: Dice {dice:.2f}"))
        rows.append(row)
    _save(_table(rows), out)


def notebook(work: Path, out: Path) -> None:
    """Execute the notebook in its own folder, and save its outputs."""
    out, folder = out.resolve(), work / "notebook"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder):
        found = executed(out)
    write_text(out, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


PICTURES = {
    "sites.webp": sites, "scenes.webp": scenes, "methods.webp": methods, "report.webp": report,
    "domains.webp": domains, "corrected.webp": corrected, "gained.webp": gained,
    "../../examples/python.ipynb": notebook,
}  # fmt: skip


def _demo(name: str) -> Path:
    """Return a file of the demo."""
    if not (DEMO / name).is_file():
        raise SystemExit(f"{DEMO / name} is not there; run `make demo` first")
    return DEMO / name


def _command(*words: str) -> None:
    if command(list(words)) != 0:
        raise SystemExit(f"surgfl {' '.join(words)} failed")


def _tutorial(work: Path) -> Path:
    """Follow docs/tutorials/first-federation.md, unless it was done before; return the folder."""
    folder = (work / "tutorial").resolve()
    if not (folder / "scores/together/hospital-b/metrics.json").is_file():
        folder.mkdir(parents=True)
        for name in ("bundles", "nvflare_jobs"):
            (folder / name).symlink_to(Path(name).resolve())
        paths = {"PYTHONPATH": str(Path.cwd()), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        runs = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
        for block in blocks_of(Path("docs/tutorials/first-federation.md"), "docs/tutorials/first-federation.md"):
            if command := runs.get(block.language):
                subprocess.run([*command, block.text], cwd=folder, env=os.environ | paths, check=True)
    return folder


def _read(folder: Path, *, every: int) -> list[np.ndarray]:
    return [np.asarray(Image.open(path).convert("RGB")) for path in sorted(folder.iterdir())[::every]]


def _table(rows: Sequence[Sequence[np.ndarray]]) -> Image.Image:
    """Arrange rows of pictures, with the legend of the parts below."""
    return Image.fromarray(_laid_out([np.concatenate([side_by_side(row) for row in rows])]))


def _comparison(work: Path) -> None:
    """Run missing trainings."""
    _command("compare", *COMPARISON, "--out", str(work / "comparison"))


def _pfedsis(work: Path) -> Path:
    """Return the folder of the comparison's PFedSIS run."""
    _comparison(work)
    return next((work / "comparison" / "runs").glob(f"pfedsis-*/[0-9]*/{SCORES}")).parent


def _column(name: str, model: Path, look: str) -> Iterator[np.ndarray]:
    """Yield frames of a video in a look, each above its mask by a model."""
    trained = load_trained(model, bundle="pfedsis")
    predictor = Predictor(trained.network, trained.task)
    video = render_video(look, SCENE_SEED, frames=FRAMES, height=192, width=256, rate=RATE)
    title = f"{name}: {look}" if name != HELD_OUT else f"never trained on: {look}"
    for frame in video:
        _, mask = predictor(network_input(frame.image[None], *trained.size), frame.image.shape[:2])
        shown = [resized(one, COLUMN) for one in (frame.image, mask)]
        gap = np.full((GAP, COLUMN, 3), 255, np.uint8)
        yield np.concatenate([captioned(shown[0], title), gap, overlay(*shown)])


def _laid_out(columns: Sequence[np.ndarray]) -> np.ndarray:
    body = side_by_side(columns)
    return np.concatenate([body, legend(class_entries(CLASS_MAPS["parts"]), width=body.shape[1])])


class _page:
    """A page in a browser, as high as it needs."""

    def __init__(self, file: Path, width: int) -> None:
        self._file, self._width = file, width

    def __enter__(self) -> Page:
        self._playwright = sync_playwright().start()
        program = executable(self._playwright)
        if program is None:
            raise SystemExit("no browser: install Chromium, or name one in SURGFL_CHROMIUM")
        self._browser: Browser = self._playwright.chromium.launch(executable_path=program)
        page = self._browser.new_page(viewport={"width": self._width, "height": 900})
        page.goto(self._file.resolve().as_uri())
        page.add_style_tag(content="nav { position: static !important; }")
        return page

    def __exit__(self, *error: object) -> None:
        self._browser.close()
        self._playwright.stop()


def _photograph(page: Page, out: Path, box: tuple[float, float, float, float]) -> None:
    """Save a part of a page, given as x, y, width and height, as WebP."""
    clip = dict(zip(("x", "y", "width", "height"), map(round, box), strict=True))
    data = page.screenshot(full_page=True, clip=clip)  # type: ignore[arg-type]
    _save(Image.open(io.BytesIO(data)), out)


def _save(picture: Image.Image, out: Path) -> None:
    with atomically(out) as part:
        picture.convert("RGB").save(part, "WEBP", quality=SHOT_QUALITY, method=6)


if __name__ == "__main__":
    main()
