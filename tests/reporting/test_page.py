"""The report in a real browser: wide and narrow, dark and printed, by eye's measures and by axe's."""

import pytest

from shared_components.reporting.records import load_run
from shared_components.reporting.report import build_report
from tests.browser import NARROW, WIDE

pytestmark = pytest.mark.slow

SMALLEST = 11.0
A4 = 703  # pixels between the margins
RUNS = {
    "pfedsis": {"rounds": 3}, "fedavg": {"rounds": 2, "mixing": False},
    "two tasks": {"sites": ("a", "b", "c"), "rounds": 2, "depth": ("c",)},
    "long names": {"sites": tuple(f"University Hospital of Somewhere, theatre {i}" for i in range(8)), "rounds": 2},
    "many sites": {"sites": tuple(f"University Hospital of Somewhere, theatre {i}" for i in range(14)), "rounds": 2},
    "not begun": {"done": 0},
}  # fmt: skip


def page(make_run, *, tested=False, **options):
    folder = make_run(**options)
    run = load_run(folder)
    own = {site: run.last_metrics(site) for site in run.sites} if tested else {}
    compared = dict.fromkeys(("as received", "local", "federated"), own) if tested else {}
    return build_report(load_run(folder, evaluations=own, compared=compared), folder / "index.html")


def unfold(view):
    view.page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
    return view


@pytest.mark.parametrize("name", RUNS)
def test_a_page_fits_its_window_is_legible_and_accessible(make_run, open_page, name):
    """Wide and narrow, and in the dark, whose colours are the same at every width."""
    view = unfold(open_page(page(make_run, tested=name in ("pfedsis", "many sites"), **RUNS[name])))
    for width in (WIDE, NARROW):
        view.resize(width)
        assert (view.sideways(), view.violations(), view.problems, view.requests) == (0, [], [], [])
        assert view.texts()[0][0] >= SMALLEST, view.texts()[:3]
    view.darken()
    assert view.violations() == []


def test_panels_are_stacked_where_it_is_narrow_and_side_by_side_where_it_is_wide(make_run, open_page):
    file = page(make_run, rounds=1)
    for width, columns in ((NARROW, 1), (WIDE, 4)):
        view = open_page(file, width)
        boxes = [image.bounding_box() for image in view.page.locator(".shot").first.locator("img").all()]
        assert len(boxes) == 4 and len({round(box["x"]) for box in boxes if box}) == columns
        assert len({round(box["y"]) for box in boxes if box}) == 5 - columns
        assert all(box and box["width"] > 250 for box in boxes)


def test_contents_lead_to_their_sections_and_stay_in_sight(make_run, open_page):
    file = page(make_run, rounds=1, tested=True)
    for width in (WIDE, NARROW):
        view = open_page(file, width)
        for link in view.page.locator("nav a").all():
            link.click()
            target = view.page.locator(link.get_attribute("href") or "")
            assert target.locator("h2").count() == 1
            bar, heading = view.page.locator("nav").bounding_box(), target.locator("h2").bounding_box()
            assert bar["y"] == 0 or view.page.evaluate("scrollY") < 400  # sticks once the page has scrolled
            assert bar["y"] + bar["height"] <= heading["y"] < 900


def test_a_wide_table_scrolls_in_itself_by_keyboard_and_says_so(make_run, open_page):
    file, name = page(make_run, rounds=1), "By site and class, on validation"
    view = unfold(open_page(file, NARROW))
    table = view.page.get_by_role("region", name=name)
    hint = "e => parseFloat(getComputedStyle(e, '::before').height)"
    assert table.evaluate("e => e.scrollWidth > e.clientWidth") and table.evaluate(hint) == 20
    table.focus()
    view.page.keyboard.press("ArrowRight")
    view.page.wait_for_function("e => e.scrollLeft > 0", arg=table.element_handle())
    table = unfold(open_page(file, WIDE)).page.get_by_role("region", name=name)
    assert table.evaluate("e => e.scrollWidth == e.clientWidth") and table.evaluate(hint) == 0


def test_a_print_opens_everything_and_cuts_no_table(make_run, open_page):
    view = open_page(page(make_run, rounds=2, tested=True), A4)
    seen = {text for _, text in view.texts()}
    assert "All settings of this run" in seen and "arguments.mode" not in seen
    view.page.emulate_media(media="print")
    printed = view.texts()
    assert {"arguments.mode", "corrected"} <= {text for _, text in printed} and printed[0][0] >= SMALLEST
    assert not view.page.locator("nav").is_visible()
    cut = "e => [e.getBoundingClientRect().right, e.querySelector('caption')?.textContent]"
    for table in view.page.locator("table").all():
        right, title = table.evaluate(cut)
        assert right <= A4, title
    assert view.pdf().startswith(b"%PDF")
