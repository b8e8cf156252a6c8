"""Each script of examples/ runs as its first lines show, on small rendered sites."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shared_components.scenes.site import write_site
from tests.docs.files import HEIGHT, WIDTH

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
VIDEOS = {"train": 1, "validation": 1, "test": 1}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples") / "scenes"
    for number, name in enumerate(("site-1", "site-2")):
        size = {"frames_per_video": 3, "height": HEIGHT, "width": WIDTH}
        write_site(folder / name, look="rose", seed=number, videos=VIDEOS, **size)
    return folder


def printed(script: str, *arguments: object, folder: Path) -> str:
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *map(str, arguments)], cwd=folder, env=variables, text=True, check=False,
        capture_output=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_examples_are_run_here():
    elsewhere = "tool_presence.py"  # tests/docs/test_docs.py follows docs/how-to/add-a-task.md
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == [
        "own_data.py", "own_method.py", "own_network.py", elsewhere,
    ]  # fmt: skip


def test_own_data_trains_a_model_and_segments_with_it(scenes, tmp_path):
    frames = next(scenes.glob("site-1/*/*/left_frames"))
    arguments = (scenes / "site-1", "--steps", 1, "--video", frames)
    lines = printed("own_data.py", *arguments, folder=tmp_path).splitlines()
    assert lines[0] == "classes: background, shaft, wrist, clasper"
    assert re.fullmatch(r"Dice before and after training: [01]\.\d+ [01]\.\d+", lines[1])
    assert [line.partition(":")[0] for line in lines[2:]] == ["frame000", "frame001", "frame002"]


@pytest.mark.parametrize("script", ["own_method.py", "own_network.py"])
def test_own_parts_are_simulated_at_two_sites(script, scenes, tmp_path):
    lines = printed(script, scenes, "--steps", 1, folder=tmp_path).splitlines()
    matches = [re.fullmatch(r"(site-\d): validation Dice [01]\.\d{3}, model (\S+)", line) for line in lines]
    assert [match[1] for match in matches] == ["site-1", "site-2"]
    assert all((tmp_path / match[2]).is_file() for match in matches)
