"""`surgfl masks`: annotation files of each format become masks that `surgfl site init` reads without an option."""

import shlex
from pathlib import Path

import pytest

from shared_components.cli import main
from shared_components.data.site_file import load_site
from tests.data.annotations.writers import WRITERS
from tests.data.custom.conftest import CLASSES, FRAMES, assert_read


def convert(root: Path, place: Path, *options: str) -> int:
    images = root / "videos" if (root / "videos").is_dir() else root / "images"
    return main(["masks", str(place), "--images", str(images), "--out", str(root / "masks"), *options])


@pytest.mark.parametrize("name", WRITERS)
def test_a_format_becomes_a_site_that_check_data_accepts(name, tmp_path, capsys):
    place = WRITERS[name](tmp_path)
    assert convert(tmp_path, place) == 0, capsys.readouterr()
    output = capsys.readouterr().out
    last = output.splitlines()[-1]
    assert last.startswith("next: surgfl site init ")
    assert f"  frames {3 * FRAMES:>10}" in " ".join(output.split(" ")) or f"{3 * FRAMES}" in output
    assert main(shlex.split(last.removeprefix("next: surgfl "))) == 0, capsys.readouterr()
    site = load_site(tmp_path)
    assert site.classes == CLASSES and len(site.source.reader.videos(tmp_path)) == 3
    for split in ("train", "validation", "test"):
        assert_read(tmp_path, split=split)
    assert main(["check-data", str(tmp_path)]) == 0
