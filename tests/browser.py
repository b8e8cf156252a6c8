"""A real browser without a screen: pages are opened from disk, measured and checked by axe.

The fixture `open_page` is every test's (tests/conftest.py). The browser is the one that SURGFL_CHROMIUM names, or
Chromium or Chrome on PATH, or playwright's own (`playwright install chromium`); without any the test is skipped.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright

WIDE, NARROW = 1280, 400  # pixels of a laptop's and of a telephone's window
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

# Every text that is drawn, with its height in pixels of the window: an SVG's text is scaled with its drawing.
_TEXTS = """() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement, text = node.textContent.trim();
    const box = element.getBoundingClientRect();
    const unseen = ["STYLE", "SCRIPT", "title"].includes(element.tagName);
    if (!text || !box.width || !box.height || unseen) continue;
    if (!element.checkVisibility({visibilityProperty: true})) continue;  // closed details keep their size
    const scale = element instanceof SVGElement ? element.getScreenCTM() : null;
    const size = parseFloat(getComputedStyle(element).fontSize) * (scale ? Math.hypot(scale.a, scale.b) : 1);
    found.push([size, text]);
  }
  return found;
}"""


@dataclass
class View:
    """A page in a window."""

    page: "Page"  # playwright's, for whatever is not below
    problems: list[str] = field(default_factory=list)  # errors on the console, thrown, or of what failed to load
    requests: list[str] = field(default_factory=list)  # addresses asked for, its own file and data URIs excepted

    def violations(self, *impacts: str) -> list[str]:
        """Let axe check the page; give what it finds of these impacts, by default the serious and the critical."""
        from axe_playwright_python.sync_playwright import Axe

        wanted = impacts or ("serious", "critical")
        found = [v for v in Axe().run(self.page).response["violations"] if v["impact"] in wanted]
        return [f"{v['impact']} {v['id']}: {node['html']}" for v in found for node in v["nodes"]]

    def resize(self, width: int) -> None:
        """Give the window another width."""
        self.page.set_viewport_size({"width": width, "height": 900})

    def darken(self) -> None:
        """Let the window prefer dark colours."""
        self.page.emulate_media(color_scheme="dark")

    def sideways(self) -> int:
        """Give the pixels by which the page is wider than its window, so that it scrolls sideways."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def texts(self) -> list[tuple[float, str]]:
        """List every text that is drawn after its height in pixels, the smallest first."""
        return sorted((round(size, 2), text) for size, text in self.page.evaluate(_TEXTS))

    def pdf(self) -> bytes:
        """Print the page on A4."""
        return self.page.pdf(format="A4", prefer_css_page_size=True)


OpenPage = Callable[..., View]


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """Start one browser for all tests of a process."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = executable(playwright)
        if program is None:
            pytest.skip("no browser: install Chromium, or name one in SURGFL_CHROMIUM")
        started = playwright.chromium.launch(executable_path=program)
        yield started
        started.close()


@pytest.fixture
def open_page(browser: "Browser") -> Iterator[OpenPage]:
    """Give the function that opens a file in a window of a width and waits until it is drawn."""
    contexts = []

    def open_file(file: Path, width: int = WIDE, *, height: int = 900) -> View:
        context = browser.new_context(viewport={"width": width, "height": height})
        contexts.append(context)
        view, own = View(context.new_page()), file.resolve().as_uri()
        view.page.on("console", lambda said: view.problems.append(said.text) if said.type == "error" else None)
        view.page.on("pageerror", lambda error: view.problems.append(str(error)))
        view.page.on("requestfailed", lambda asked: view.problems.append(f"{asked.url} did not load"))
        view.page.on("request", lambda asked: _note(view, asked.url, own))
        view.page.goto(own)
        return view

    yield open_file
    for context in contexts:
        context.close()


def executable(playwright: "Playwright") -> str | None:
    """Give the browser's program; None where there is none.

    Raises:
        FileNotFoundError: SURGFL_CHROMIUM names no file.
    """
    if named := os.environ.get("SURGFL_CHROMIUM"):
        if not shutil.which(named):
            raise FileNotFoundError(f"SURGFL_CHROMIUM={named}: is no program; name a Chromium, or unset it")
        return named
    if found := next(filter(None, map(shutil.which, _NAMES)), None):
        return found
    own = playwright.chromium.executable_path
    return own if Path(own).is_file() else None


def _note(view: View, url: str, own: str) -> None:
    if not url.startswith(("data:", own)):
        view.requests.append(url)
