"""The comparison's page in a real browser: nothing too wide, too small, hidden or fetched from elsewhere."""

import re
from dataclasses import replace

import pytest

from shared_components.experiments.comparison.output import as_page
from shared_components.experiments.comparison.results import Result
from tests.browser import NARROW, WIDE
from tests.experiments.comparison.conftest import illustrated

pytestmark = pytest.mark.slow

SMALLEST = 11  # pixels of letters


def page_of(comparison, folder):
    file = folder / "index.html"
    file.write_text(as_page(comparison), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Twenty-seven methods, one without a result."""
    folder = tmp_path_factory.mktemp("many")
    comparison = illustrated(folder, 27)
    failed = Result(replace(comparison.results[5].run), reason="too few <sites>")
    return page_of(replace(comparison, results=(*comparison.results[:5], failed, *comparison.results[6:])), folder)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few")
    return page_of(illustrated(folder, 3), folder)


@pytest.mark.parametrize("name", ["everything", "few"])
def test_the_page_is_legible_and_accessible(request, open_page, name):
    """Narrow and wide, and in the dark, whose colours are the same at every width."""
    view = open_page(request.getfixturevalue(name))
    for width in (NARROW, WIDE):
        view.resize(width)
        assert (view.problems, view.requests, view.sideways(), view.violations()) == ([], [], 0, [])
        assert view.texts()[0][0] >= SMALLEST, view.texts()[:5]
    view.darken()
    assert view.violations() == []


def test_narrow_frames_stand_in_pairs_and_printed_every_method_is_named(everything, open_page):
    view = open_page(everything, NARROW)
    row = view.page.locator(".frames tbody tr:nth-child(2)").first
    boxes = [image.bounding_box() for image in row.locator("img").all()]
    assert len({round(box["x"]) for box in boxes}) == 2 and all(box["width"] > 140 for box in boxes)
    assert view.page.locator(".scroll:has(.frames)").evaluate("e => e.scrollWidth == e.clientWidth")
    assert row.locator(".who:visible").count() == row.locator("img").count() - 1  # the frame itself has its own name
    view = open_page(everything, WIDE)
    view.page.emulate_media(media="print")
    assert view.page.locator(".frames td .who:visible").count() >= 26 * 4
    inside = "e => e.getBoundingClientRect().right <= document.documentElement.clientWidth"
    assert view.page.evaluate(f"() => [...document.querySelectorAll('.frames img')].every({inside})")
    assert view.pdf().startswith(b"%PDF")


def test_many_methods_scroll_inside_their_own_frame_beside_the_frame_they_are_of(everything, open_page):
    width = WIDE
    view = open_page(everything, width)
    area = view.page.locator(".scroll:has(.frames)")
    assert area.evaluate("e => e.scrollWidth > 2 * e.clientWidth && getComputedStyle(e).overflowX == 'auto'")
    assert area.evaluate("e => getComputedStyle(e, '::before').content") == '"scroll →"'
    row = view.page.locator(".frames tbody tr:nth-child(2)")
    first, last = row.locator("th img").first, row.locator("td:last-child img").first
    before = first.bounding_box()["x"]
    area.focus()
    view.page.keyboard.press("End" if area.evaluate("e => e.tabIndex") < 0 else "ArrowRight")
    view.page.wait_for_function("() => document.querySelector('.scroll:has(.frames)').scrollLeft > 0")
    area.evaluate("e => e.scrollTo(e.scrollWidth, 0)")
    assert first.bounding_box()["x"] == before < last.bounding_box()["x"] < width - 50
    assert view.sideways() == 0


def test_each_window_has_its_own_charts(few, open_page):
    for width, shown, hidden in ((WIDE, ".wide", ".narrow"), (NARROW, ".narrow", ".wide")):
        view = open_page(few, width)
        assert [view.page.locator(f"{kind} svg:visible").count() for kind in (shown, hidden)] == [5, 0]


def test_every_link_leads_somewhere(everything):
    text = everything.read_text(encoding="utf-8")
    links = re.findall('href="#([^"]*)"', text)
    assert len(links) == 6 and all(text.count(f'id="{link}"') == 1 for link in links)
    assert "too few &lt;sites&gt;" in text and 'class="none"' in text
