"""The documentation as a site: a broken link fails, and generated pages are those of the code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evidence.reference.__main__ import outdated

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_generated_pages_are_those_of_the_code():
    """If this fails: make reference."""
    assert outdated() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "link", ["[page](gone.md)", "[heading](index.md#gone)", "[source](../surgfl/gone.py)", "![picture](gone.webp)"]
)
def test_a_broken_link_fails_the_build(link, tmp_path):
    assert build(tmp_path / "good", "[heading](index.md#here)") == ""
    assert "gone" in build(tmp_path / "bad", link)


def build(folder: Path, link: str) -> str:
    """Build a site of one page by our settings; return its warnings."""
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("*.md", "pictures"))
    (folder / "docs" / "index.md").write_text(f"# Title\n\n## Here\n\n{link}\n")
    options = ["-q", "-n", "-W", "--keep-going", "-c", folder / "docs", folder, folder / "site"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr
