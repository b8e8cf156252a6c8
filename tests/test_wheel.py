"""The wheel, in an environment that has what it requires and nothing else: a user's first steps from it."""

import configparser
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import cv2
import numpy as np
import pytest
from packaging.requirements import Requirement

from shared_components import __version__

ROOT = Path(__file__).resolve().parents[1]
# An import of ours fails as on Windows. Other libraries have their own ways there.
ELSEWHERE = """
import builtins
real = builtins.__import__
def elsewhere(name, variables=None, *more, **named):
    of = (variables or {}).get("__name__", "")
    if of.startswith(("shared_components", "surgfl")) and name in {"fcntl", "resource", "pwd", "grp", "termios"}:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return real(name, variables, *more, **named)
builtins.__import__ = elsewhere
"""
# Commands of `surgfl`, and what `job submit` sends: in one process, since each would import PyTorch for seconds.
STEPS = """
import sys
from pathlib import Path
from shared_components.cli import main
from shared_components.flare.deployment.submission import find_job, write_submission
assert main("train naïve --steps 1 --size 64x96 --out mine --id".split() + ["1=Schaft für Öl"]) == 0
assert main("segment surgery.avi --model mine/model.safetensors".split()) == 0
write_submission(find_job("pfedsis"), Path("job"))
sys.exit(main("job submit pfedsis --admin kit".split()))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info", "runs", "results")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("shared_components", "surgfl", "bundles", "nvflare_jobs"):
        shutil.copytree(ROOT / name, source / name, ignore=leave)
    words = ["wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", "dist", "."]
    subprocess.run([sys.executable, "-m", "pip", *words], cwd=source, check=True)
    (path,) = (source / "dist").iterdir()
    return path


def needed():
    """Return the distributions that `pip install surgfl` without an extra brings, of those that are installed here."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    todo, found = setup["options"]["install_requires"].split(), set()
    while todo:
        requirement = Requirement(todo.pop())
        if requirement.name not in found and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
            found.add(requirement.name)
            todo += distribution(requirement.name).requires or ()
    return found


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """Return a folder with an environment in which it is installed beside what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("fresh")
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    for name in needed():
        for top in {Path(file).parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(sysconfig.get_path("purelib"), top))
    install = ["install", "--no-deps", "--no-index", "--no-compile", "--quiet", wheel]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    (site / "elsewhere.py").write_text(ELSEWHERE)
    (site / "elsewhere.pth").write_text("import elsewhere\n")
    return folder


def labelled_frames(folder):
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number in range(5):
        image, mask = rng.integers(60, 120, (64, 96, 3), dtype=np.uint8), np.zeros((64, 96), np.uint8)
        mask[10:40, 10 + 3 * number : 50] = 1
        image[mask == 1] += 100
        cv2.imwrite(str(folder / "images" / f"frame{number}.png"), image)
        cv2.imwrite(str(folder / "masks" / f"frame{number}.png"), mask)


@pytest.mark.slow
def test_the_wheel_alone_trains_on_five_frames_segments_a_video_and_names_the_extra_of_the_rest(fresh, wheel):
    labelled_frames(fresh / "naïve")
    writer = cv2.VideoWriter(str(fresh / "surgery.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (96, 64))
    for index in range(3):
        writer.write(np.full((64, 96, 3), 40 * index, np.uint8))
    writer.release()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*words):
        return subprocess.run(words, cwd=fresh, capture_output=True, text=True, env=clean)

    version = run("venv/bin/surgfl", "--version")
    assert version.stdout == f"surgfl {__version__}\n", version.stderr
    done = run("venv/bin/python", "-X", "warn_default_encoding", "-W", "always::EncodingWarning", "-c", STEPS)
    said = done.stderr.splitlines()
    assert said[-1] == "surgfl job: nvflare is not installed; run: pip install 'surgfl[fl]'", said
    assert done.returncode == 2 and "Schaft für Öl" in done.stdout
    # All text is read as UTF-8, whatever the system's is.
    assert [line for line in said if "EncodingWarning" in line and "shared_components" in line] == []

    found = json.loads((fresh / "mine" / "training.json").read_text("utf-8"))
    assert {"before", "after"} <= found.keys() and cv2.imread(str(fresh / "mine" / "before-after.png")) is not None
    assert {"overlay.mp4", "masks", "visible.csv"} <= {path.name for path in (fresh / "surgery-segmented").iterdir()}
    for name in ("meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json"):
        assert (fresh / "job" / "pfedsis" / name).is_file()
    with zipfile.ZipFile(wheel) as archive:
        weights = [entry for entry in archive.infolist() if entry.filename.endswith((".safetensors", ".pt"))]
    assert len({entry.CRC for entry in weights}) == len(weights) and wheel.stat().st_size < 45e6
