"""The browser of the tests sees what is wrong with a page, on one page where everything is."""

from pathlib import Path

import pytest

from tests.browser import NARROW, WIDE, OpenPage, executable

WRONG = """<!DOCTYPE html><html><head><title>x</title></head><body style="margin: 0">
<p style="font-size: 10px; color: #bbb; background: #ccc">too small and too pale</p>
<svg viewBox="0 0 200 20" width="100" height="10"><title>y</title>
<text y="16" style="font-size: 18px">scaled</text></svg>
<img src="https://outside.invalid/x.png"><div style="width: 1000px; height: 3px; background: #000"></div>
<script>throw new Error("thrown here")</script></body></html>"""
RIGHT = """<!DOCTYPE html><html lang="en"><head><title>x</title></head><body>
<main><h1 style="font-size: 20px">Heading</h1><p>text</p><details><summary>more</summary><p>closed</p></details>
<p style="visibility: hidden">hidden</p></main></body></html>"""


def write(folder: Path, text: str) -> Path:
    file = folder / "page with a space.html"
    file.write_text(text)
    return file


def test_what_is_wrong_is_found(open_page: OpenPage, tmp_path: Path) -> None:
    view = open_page(write(tmp_path, WRONG), NARROW)
    found = {line.split(":")[0] for line in view.violations()}
    assert {"serious color-contrast", "critical image-alt", "serious html-has-lang"} <= found
    assert view.sideways() == 1000 - NARROW
    assert view.texts() == [(9.0, "scaled"), (10.0, "too small and too pale")]
    assert view.requests == ["https://outside.invalid/x.png"]
    assert any("thrown here" in problem for problem in view.problems)


def test_nothing_is_found_on_a_plain_page_which_has_the_colours_asked_for(open_page: OpenPage, tmp_path: Path) -> None:
    file = write(tmp_path, RIGHT)
    view = open_page(file, WIDE)
    assert (view.violations(), view.sideways(), view.problems, view.requests) == ([], 0, [], [])
    assert view.texts() == [(16.0, "more"), (16.0, "text"), (20.0, "Heading")]
    assert view.pdf().startswith(b"%PDF")
    assert view.shot(tmp_path / "x.png").stat().st_size > 1000
    is_dark = "() => matchMedia('(prefers-color-scheme: dark)').matches"
    assert [open_page(file, dark=dark).page.evaluate(is_dark) for dark in (True, False)] == [True, False]


def test_a_browser_that_is_named_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURGFL_CHROMIUM", "/nowhere/chromium")
    with pytest.raises(FileNotFoundError, match="SURGFL_CHROMIUM=/nowhere/chromium"):
        executable(None)  # type: ignore[arg-type]
