"""Pages of runs with many sites: worst sites first, summaries, folds, and a limited size."""

import base64
import math
import re
import statistics

import cv2
import numpy as np
import pytest

from shared_components.core.card import Metric
from shared_components.reporting.axes import BAND, MEAN
from shared_components.reporting.charts import line_chart
from shared_components.reporting.costs import cost_table, rejection_table
from shared_components.reporting.evaluation_summary import evaluation_of
from shared_components.reporting.figures import Lines, mixing_maps, score_panels
from shared_components.reporting.galleries import galleries
from shared_components.reporting.heat_images import heat_image
from shared_components.reporting.many_sites import MOST, NAMED, folded, ranked, reductions
from shared_components.reporting.records import load_run
from shared_components.reporting.report import build_report
from shared_components.reporting.score_tables import demo_text, progress_table, scores_table
from shared_components.reporting.summary import sentences
from shared_components.reporting.tables import Table, as_text
from shared_components.reporting.watch_view import Look, frame

DICE, RMSE = Metric("dice", "Dice", True), Metric("rmse", "RMSE", False, unit="mm", digits=2)
MANY = tuple(f"hospital-{i:02d}" for i in range(1, MOST + 4))


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    from tests.reporting.conftest import write_run

    return load_run(write_run(tmp_path_factory.mktemp("many") / "run", sites=MANY, rounds=2))


def last_dice(run):
    return {site: run.last_metrics(site)["dice"]["mean"] for site in run.sites}


def test_sites_are_ranked_by_value_in_either_direction_and_those_without_a_value_are_last():
    values = {"a": 0.5, "b": math.nan, "c": 0.2, "d": 0.5}
    assert ranked(values, highest_first=False) == ["c", "a", "d", "b"]
    assert ranked(values, highest_first=True) == ["a", "d", "c", "b"]


def test_summary_rows_have_the_numbers_worked_by_hand():
    columns = [0.1, 0.9, math.nan, 0.2, 0.4]
    rows = {name: text(columns) for name, text in reductions(DICE, many=True).items()}
    assert rows == {
        "mean over sites": "0.400", "worst site": "0.100", "median site": "0.300", "best site": "0.900",
        "sites with a score": "4",
    }  # fmt: skip
    assert reductions(RMSE, many=True)["worst site"](columns) == "0.90"
    assert [text([math.nan]) for text in reductions(DICE, many=True).values()] == ["–"] * 4 + ["0"]
    assert list(reductions(DICE, many=False)) == ["mean over sites", "worst site"]


def test_a_folded_table_counts_the_sites_of_its_hidden_rows():
    rows = tuple((site, name) for site in "abc" for name in ("shaft", "wrist"))
    table = folded(Table("t", ("site", "class"), rows, labels=2), 2)
    assert as_text(table).splitlines()[-1] == "... and 2 more sites" and "b " not in as_text(table)
    assert folded(table, 6).rest == table.rest and folded(Table("t", ("site",), (("a",),)), 1).rest == ""


def test_tables_begin_with_summaries_and_the_worst_sites(many):
    (group,) = many.groups
    expected = sorted(MANY, key=last_dice(many).__getitem__)
    table = progress_table(many, group)
    names = [row[0] for row in table.rows]
    summaries = len(reductions(DICE, many=True))
    assert names[summaries:] == expected and table.shown == summaries + NAMED
    assert table.rest == f"{len(MANY) - NAMED} more sites"
    column = table.head.index("last mean")
    assert table.rows[names.index("median site")][column] == f"{statistics.median(last_dice(many).values()):.3f}"
    scores = scores_table({site: many.last_metrics(site) for site in MANY}, group, title="t")
    assert list(dict.fromkeys(row[0] for row in scores.rows))[summaries:] == expected
    assert scores.shown == (summaries + NAMED) * (len(group.outputs) + 1) and scores.rest == table.rest
    text = demo_text(many)
    assert expected[0] in text and expected[-1] not in text and f"... and {table.rest}" in text


def test_the_cost_table_begins_with_the_slowest_sites(many):
    table = cost_table(many)
    seconds = {row[0]: float(row[5]) for row in table.rows}
    sites = [row[0] for row in table.rows if row[0] in MANY]
    assert sorted(sites) == sorted(MANY) and [seconds[s] for s in sites] == sorted(map(seconds.get, MANY), reverse=True)
    assert seconds["highest"] == seconds[sites[0]] and seconds["lowest"] == seconds[sites[-1]]
    assert seconds["median site"] == pytest.approx(statistics.median(seconds[s] for s in sites), abs=0.06)


def test_charts_name_the_worst_sites_and_draw_the_others_as_a_band(many):
    (group,) = many.groups
    legend = [name for _, name in score_panels(many, group)[0].legend]
    worst = sorted(MANY, key=last_dice(many).__getitem__)[:NAMED]
    assert [name for name in legend if name in MANY] == worst and f"middle 80 % of the {len(MANY)} sites" in legend
    by_site = {site: {0: float(i), 1: float(i * i)} for i, site in enumerate(MANY)}
    by_site[MANY[0]] = {1: 0.0}
    band, *named, mean = Lines(many, MANY, MANY, "").series(by_site)
    assert (band.index, mean.index, [s.name for s in named]) == (BAND, MEAN, list(MANY[:NAMED]))
    assert mean.points == {
        0: statistics.fmean(range(1, len(MANY))),
        1: statistics.fmean(i * i for i in range(len(MANY))),
    }
    corners = re.findall(r'<polygon points="([^"]+)"', line_chart([band], title="t", y_label="y"))
    assert len(corners) == 1 and len(corners[0].split()) == 4  # two rounds, upper and lower edge
    deciles = statistics.quantiles(range(1, len(MANY)), n=10, method="inclusive")
    assert (band.low[0], band.points[0]) == pytest.approx((deciles[0], deciles[-1]))


def test_mixing_weights_of_many_sites_are_pixels_and_the_largest_are_named(many):
    (panel,) = mixing_maps(many)
    assert len(panel.charts) == 14 and all(chart.count("<rect") == 1 for chart in panel.charts)
    assert re.search(
        r"Largest weights between two sites, mean over the layers: hospital-\d\d from hospital-\d\d 0\.", panel.text
    )
    weights = np.array([[0.9, 0.1, math.nan], [1 / 3, 1 / 3, 1 / 3], [0.0, 1.0, 0.0]])
    data = re.search(r'base64,([^"]+)"', heat_image(weights, title="t", spread=2 / 3))
    assert data
    pixels = cv2.imdecode(np.frombuffer(base64.b64decode(data[1]), np.uint8), cv2.IMREAD_UNCHANGED)
    opacity = [[173, 71, 0], [0, 0, 0], [102, 204, 102]]  # 255 * 0.8 * |weight - 1/3| / (2/3)
    assert np.abs(pixels[..., 3].astype(int) - opacity).max() <= 1
    assert pixels[0, 0, 0] > pixels[0, 0, 2] and pixels[0, 1, 0] < pixels[0, 1, 2]  # more is blue, less is orange


def test_pictures_are_of_the_worst_sites_and_all_others_are_named(many):
    (group,) = many.groups
    shown = galleries(many, group)
    expected = sorted(MANY, key=last_dice(many).__getitem__)
    assert [site["name"] for site in shown["galleries"]] == expected[:NAMED]
    assert shown["left_out"] == {
        f"{len(MANY) - NAMED} more sites with pictures in the folder overlays": ", ".join(expected[NAMED:])
    }
    for picture in (many.folder / expected[0] / "overlays").iterdir():
        picture.rename(picture.with_suffix(picture.suffix + ".away"))
    try:
        again = galleries(many, group)
        assert [site["name"] for site in again["galleries"]] == expected[1 : NAMED + 1]
        assert [names for text, names in again["left_out"].items() if "stay at the site" in text] == [expected[0]]
    finally:
        for picture in (many.folder / expected[0] / "overlays").iterdir():
            picture.rename(picture.with_suffix(""))


def test_the_first_chart_has_the_mean_all_sites_as_dots_and_the_worst_sites(many):
    (group,) = many.groups
    run = load_run(many.folder, evaluations={site: many.last_metrics(site) for site in MANY})
    evaluation = evaluation_of(run, group)
    assert evaluation
    panel, every = evaluation.panel(), evaluation.all_sites()
    labels = re.findall(r'class="cell">([^<]+)', panel.charts[0])
    names = [label for label in labels if not label.startswith("0.")]
    expected = sorted(MANY, key=last_dice(many).__getitem__)
    assert names == [f"mean over {len(MANY)} sites", f"all {len(MANY)} sites, median", *expected[:NAMED]]
    assert panel.charts[0].count("<circle") == 2 + len(MANY) + NAMED
    assert every and [x for x in re.findall(r'class="cell">([^<]+)', every.charts[0]) if x in MANY] == expected


def test_rejections_and_absences_of_many_sites_are_counted(many, tmp_path):
    run = load_run(many.folder)
    run.aggregations[0]["rejected"] = [{"site": site, "reason": "no answer"} for site in MANY]
    for site in MANY:
        del run.rows[site][0]
    table = rejection_table(run)
    assert table.shown == MOST and table.rest == "3 more updates" and len(table.rows) == len(MANY)
    texts = [text for text in sentences(run) if "missing from" in text or "missed" in text]
    assert len(texts) == NAMED + 1 and texts[-1] == "10 more sites missed rounds, each 1 round or fewer."


@pytest.mark.parametrize("sites", [64, 256])
def test_a_page_of_many_sites_is_small_and_mentions_every_site(make_run, sites, tmp_path):
    names = tuple(f"site-{i + 1:03d}" for i in range(sites))
    page = build_report(make_run(sites=names, rounds=2, mixing=False, overlays=False), tmp_path / "index.html")
    text = page.read_text()
    assert len(text) < (2_000_000 if sites > 64 else 700_000)
    assert all(name in text for name in names) and f"{sites - NAMED} more sites" in text.lower()


def test_a_page_of_few_sites_folds_nothing(make_run, tmp_path):
    page = build_report(make_run(sites=MANY[:MOST], rounds=1, overlays=False), tmp_path / "index.html")
    assert "more site" not in page.read_text() and "median site" not in page.read_text()


def test_a_watched_run_fits_its_terminal_with_the_most_urgent_sites_first(many):
    run = load_run(many.folder)
    del run.rows[MANY[7]][1]
    run.aggregations[0]["rejected"] = [{"site": MANY[7], "reason": "no answer"}] * 9
    run.info["left_out"] = {f"other-{i}": "another start" for i in range(9)}
    steps = {MANY[9]: "training 3/26 loss 0.412 of a long step"}
    text = frame(Look("fedavg/x", "running", run, steps, 1.0), (80, 30))
    lines = text.splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 80
    shown = [line.split()[0] for line in lines if line.startswith("hospital-")]
    others = [site for site in sorted(MANY, key=last_dice(run).__getitem__) if site not in (MANY[7], MANY[9])]
    assert shown == [MANY[7], MANY[9], *others][: len(shown)] and len(shown) >= 3
    assert f"... and {len(MANY) - len(shown)} more sites" in lines
    assert "missing: 4 more sites left out at enrolment" in lines
    whole = frame(Look("fedavg/x", "running", run, steps, 1.0))
    assert [line.split()[0] for line in whole.splitlines() if line.startswith("hospital-")] == list(MANY)


def test_a_long_name_loses_its_middle_in_a_narrow_terminal(make_run):
    names = tuple(f"University Hospital of Somewhere, theatre {i}" for i in range(2))
    text = frame(Look("x/y", "running", load_run(make_run(sites=names, rounds=1)), {}, 1.0), (72, 24))
    assert max(map(len, text.splitlines())) == 72 and "theatre 1" in text and text.count("…") == 2
