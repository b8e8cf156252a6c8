"""The browser of the tests sees what is wrong with a page, on one page where everything is."""

from pathlib import Path

import pytest

from tests.browser import NARROW, OpenPage, executable

WRONG = """<!DOCTYPE html><html><head><title>x</title></head><body style="margin: 0">
<p style="font-size: 10px; color: #bbb; background: #ccc">too small and too pale</p>
<svg viewBox="0 0 200 20" width="100" height="10"><title>y</title>
<text y="16" style="font-size: 18px">scaled</text></svg>
<img src="https://outside.invalid/x.png"><div style="width: 1000px; height: 3px; background: #000"></div>
<script>throw new Error("thrown here")</script></body></html>"""


def test_what_is_wrong_is_found(open_page: OpenPage, tmp_path: Path) -> None:
    file = tmp_path / "page with a space.html"
    file.write_text(WRONG)
    view = open_page(file, NARROW)
    found = {line.split(":")[0] for line in view.violations()}
    assert {"serious color-contrast", "critical image-alt", "serious html-has-lang"} <= found
    assert view.sideways() == 1000 - NARROW
    assert view.texts() == [(9.0, "scaled"), (10.0, "too small and too pale")]
    assert view.requests == ["https://outside.invalid/x.png"]
    assert any("thrown here" in problem for problem in view.problems)


def test_a_browser_that_is_named_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURGFL_CHROMIUM", "/nowhere/chromium")
    with pytest.raises(FileNotFoundError, match="SURGFL_CHROMIUM=/nowhere/chromium"):
        executable(None)  # type: ignore[arg-type]
