"""The summary in words a clinician reads; of several tasks each by its own metrics, and no mean across them."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from shared_components.core.card import Card
from shared_components.reporting.evaluation_summary import evaluation_of
from shared_components.reporting.figures import followed, score_panels
from shared_components.reporting.records import Group, RecordError, Run, load_run, output_names, worst
from shared_components.reporting.report import build_report
from shared_components.reporting.score_tables import demo_text, progress_table, scores_table
from shared_components.reporting.summary import amount, score_tiles, sentences, state, tiles
from shared_components.reporting.tables import as_text
from shared_components.reporting.tensorboard import progress_line
from tests.reporting.conftest import DEPTH, METRICS, SEGMENTATION, change_info


def run_of(card, values, *, rounds=1, **info):
    """Make a run of sites of one task, by the values of its first metric in every round."""
    metric = METRICS[card.kind][0].name
    outputs = ("mean", *card.outputs[1:])
    rows = {
        site: {r: {"round": r, "metrics": {metric: dict.fromkeys(outputs, v)}} for r, v in enumerate(numbers)}
        for site, numbers in values.items()
    }
    aggregations = {r: {"round": r} for r in range(max(map(len, values.values())) - 1)}
    info |= {"rounds": rounds, "cards": dict.fromkeys(values, card.to_json())}
    info["metrics"] = {kind: [metric.to_json() for metric in rows] for kind, rows in METRICS.items()}
    return Run(Path("nowhere"), info, tuple(values), rows, aggregations, {})


dice_run, rmse_run = partial(run_of, SEGMENTATION), partial(run_of, DEPTH)


def test_every_gain_is_named_and_no_loss_hidden():
    first, second, *_ = sentences(dice_run({"a": (0.12, 0.71), "b": (0.2, 0.6)}))
    assert first == "Every site's Dice rose: a 0.12 → 0.71, b 0.20 → 0.60."
    assert second == "The worst site is b with Dice 0.600; the mean over the sites is 0.655."
    assert sentences(dice_run({"a": (0.1, 0.7), "b": (0.5, 0.4)}))[0].startswith("Dice rose at 1 of 2 sites: ")
    assert sentences(dice_run({"a": (0.5, 0.5)}))[0] == "The site's Dice did not rise: a 0.50 → 0.50."
    assert sentences(dice_run({"a": (0.1, 0.7), "b": ()}))[0] == "Dice rose at 1 of 2 sites: a 0.10 → 0.70."
    many = {f"s{i}": (0.1, 0.5 + i / 100) for i in range(7)} | {"late": (0.6, 0.3)}
    assert sentences(dice_run(many))[0] == "Dice rose at 7 of 8 sites: from 0.10–0.60 to 0.30–0.56; not at late."


def test_missed_rounds_are_named_and_refused_updates_counted():
    run = dice_run({"a": (0.1, 0.2, 0.3, 0.4), "b": (0.1, 0.2, 0.3, 0.4)}, rounds=3)
    del run.rows["b"][1], run.rows["b"][2]
    run.aggregations[0]["rejected"] = [{"site": "a", "reason": "not finite"}]
    missing = {"b is missing from rounds 2, 3.", "1 update was rejected or missing; see the list below."}
    assert missing <= set(sentences(run)) and ("missing updates", "1") in tiles(run)


def test_state_is_complete_unfinished_stopped_or_failed():
    assert state(dice_run({"a": (0.1, 0.2)})) == ("complete", "1 of 1 round was aggregated.")
    assert state(dice_run({"a": (0.1, 0.2)}, rounds=5))[0] == "unfinished"
    failed = state(dice_run({"a": (0.1, 0.2)}, rounds=5, error="site-2: no training data"))
    assert failed == ("failed", "This run failed after 1 of 5 rounds were aggregated: site-2: no training data")
    assert state(dice_run({"a": (0.1, 0.2)}, rounds=5, stopped="an administrator stopped it")) == (
        "stopped", "This run was stopped after 1 of 5 rounds were aggregated: an administrator stopped it"
    )  # fmt: skip


def test_bytes_are_written_in_a_unit_that_suits_them():
    assert [amount(n) for n in (8, 1500, 27_160_000, 13.04e9)] == ["8 bytes", "1.5 kB", "27.2 MB", "13.0 GB"]


def test_sites_are_grouped_by_card_in_the_runs_order_and_keep_their_colours(make_run):
    run = load_run(make_run(depth=("site-2",)))
    one, other = (group.title for group in run.groups)
    assert (one, other) == ("Segmentation: shaft, wrist, clasper (site-1, site-3)", "Depth (site-2)")
    assert run.cards == {"site-1": SEGMENTATION, "site-2": DEPTH, "site-3": SEGMENTATION}
    assert "var(--s2)" in score_panels(run, run.groups[1])[0].legend[0][0]
    assert "var(--s3)" in score_panels(run, run.groups[0])[0].legend[1][0]


def test_a_title_counts_many_names_and_outputs_have_the_cards_order_in_any_file():
    card = Card("triplets", (), ("image", "prompt"), frames=4)
    group = Group(card, METRICS["depth"], tuple("abcdefghi"), tuple(map(str, range(100))))
    assert group.title == "Triplets: 100 outputs, 4 frames, with prompt (9 sites)"
    record = {"dice": dict.fromkeys(("clasper", "mean", "other", "shaft", "wrist"), 0.5)}
    assert output_names([record], METRICS["segmentation"][0], SEGMENTATION) == ("shaft", "wrist", "clasper", "other")


def test_a_run_of_an_older_version_is_refused_in_one_sentence(make_run):
    folder = make_run(done=0)
    info = json.loads((folder / "run.json").read_text())
    for changed, said in (
        ({"cards": None}, "is from an older version of surgfl and names no tasks; run the job again in a new folder"),
        ({"cards": {"site-1": DEPTH.to_json()}}, "contains no task of site-2, only of site-1"),
        ({"metrics": {"depth": []}}, "contains no metrics of segmentation, only of depth"),
    ):
        change_info(folder, **(info | changed))
        with pytest.raises(RecordError, match=rf"run\.json: {said}"):
            load_run(folder)


def test_the_worst_site_has_the_highest_error_and_the_best_round_the_lowest():
    run = rmse_run({"a": (9.0, 3.0, 4.0), "b": (8.0, 6.0, 5.0)})
    table = progress_table(run, run.groups[0])
    assert dict((row[0], row[1:]) for row in table.rows) == {
        "a": ("9.00", "4.00", "3.00"), "mean over sites": ("8.50", "4.50", "4.00"),
        "b": ("8.00", "5.00", "5.00"), "worst site": ("9.00", "5.00", "5.00"),
    }  # fmt: skip
    assert table.title == "RMSE mm on the validation split" and "worst site: the highest" in table.note
    assert worst({"a": {0: 3.0, 1: 4.0}, "b": {0: 6.0}}, METRICS["depth"][0]) == {0: 6.0, 1: 4.0}
    assert score_tiles(run, run.groups[0]) == [("mean RMSE, validation", "4.50 mm"), ("worst site's RMSE", "5.00 mm")]


def test_falling_errors_are_told_as_improvement():
    first, second, *_ = sentences(rmse_run({"a": (9.0, 3.0), "b": (8.0, 6.04)}))
    assert first == "Every site's RMSE fell (lower is better): a 9.0 → 3.0 mm, b 8.0 → 6.0 mm."
    assert second == "The worst site is b with RMSE 6.04 mm; the mean over the sites is 4.52 mm."
    assert sentences(rmse_run({"a": (9.0, 9.5)}))[0] == "The site's RMSE did not fall: a 9.0 → 9.5 mm."
    rose = rmse_run({"a": (9.0, 3.0), "b": (8.0, 9.0)})
    assert sentences(rose)[0].startswith("RMSE fell (lower is better) at 1 of 2 sites: ")
    many = rmse_run({f"s{i}": (9.0 + i, 3.0) for i in range(7)} | {"late": (2.0, 4.0)})
    assert sentences(many)[0].endswith("from 2.0–15.0 mm to 3.0–4.0 mm; not at late.")
    run = rmse_run({"a": (9.0, 3.0), "b": (8.0, 6.0)})
    run.evaluations.update({"a": {"rmse": {"mean": 2.0}}, "b": {"rmse": {"mean": 7.0}}})
    text = "Mean RMSE (lower is better) over 2 sites on the test frames: 4.50 mm. Worst site: 7.00 mm (b)."
    assert text in evaluation_of(run, run.groups[0]).sentence()


def test_several_tasks_are_told_apart_and_never_averaged(make_run):
    run = load_run(make_run(depth=("site-3",)))
    said = sentences(run)
    assert said[0].startswith("Segmentation: shaft, wrist, clasper (site-1, site-2). Every site's Dice rose: ")
    assert "The worst site is site-2 with Dice" in said[0]
    assert said[1] == "Depth (site-3). The site's RMSE fell (lower is better): site-3 26.0 → 6.4 mm."
    for group in run.groups:
        shown = {row[0] for row in progress_table(run, group).rows}
        assert shown - {"mean over sites", "worst site"} == set(group.sites)
    assert not any("Dice" in label or "RMSE" in label for label, _ in tiles(run))
    assert score_tiles(run, run.groups[1]) == [("RMSE, validation", "6.37 mm")]


def test_the_terminal_shows_a_table_for_every_task_and_none_for_an_unknown_site(make_run):
    evaluations, folder = {"site-1": {"dice": {"shaft": 0.5}}, "site-3": {"rmse": {}}}, make_run(depth=("site-3",))
    with pytest.raises(RecordError, match="unknown site elsewhere; evaluate only site-1, site-2, site-3"):
        load_run(folder, evaluations={"elsewhere": {}})
    text = demo_text(folder, evaluations=evaluations)
    segmentation, depth = "Segmentation: shaft, wrist, clasper (site-1, site-2)", "Depth (site-3)"
    tested = "Scores on the test split, evaluated after training"
    assert [line for line in text.splitlines() if "split" in line] == [
        f"{segmentation}: Dice on the validation split", f"{segmentation}: {tested}",
        f"{depth}: RMSE mm on the validation split", f"{depth}: {tested}",
    ]  # fmt: skip
    assert "Dice" not in text.split("Depth (site-3)")[1] and "RMSE" not in text.split("Depth (site-3)")[0]


def test_a_task_without_outputs_has_one_row_a_site_and_nothing_empty():
    group = Group(DEPTH, METRICS["depth"], ("a", "b"))
    values = {"a": (4.0, 0.9), "b": (6.0, 0.5)}
    records = {site: {"rmse": {"mean": rmse}, "delta1": {"mean": delta}} for site, (rmse, delta) in values.items()}
    table = scores_table(records, group, title="t")
    assert table.head == ("site", "RMSE mm", "MAE mm", "absolute relative error", "δ < 1.25")
    assert table.rows == (
        ("a", "4.00", "–", "–", "0.900"), ("b", "6.00", "–", "–", "0.500"),
        ("mean over sites", "5.00", "–", "–", "0.700"), ("worst site", "6.00", "–", "–", "0.500"),
    )  # fmt: skip
    assert "Empty frames" not in table.note and "HD95" not in as_text(table)


def test_charts_show_what_every_round_scores_and_say_the_direction(make_run):
    run = load_run(make_run(depth=("site-2", "site-3")))
    assert [m.name for m in followed(run, run.groups[0])] == ["dice", "iou"]
    panels = score_panels(run, run.groups[1])
    assert [panel.title for panel in panels] == ["Over the rounds", "Other metrics"]
    labels = [re.findall('aria-label="([^"]*)"', chart)[0] for panel in panels for chart in panel.charts]
    errors = ["RMSE", "MAE", "absolute relative error"]
    assert labels == [*(f"{name} (lower is better)" for name in errors), "δ &lt; 1.25"]
    assert [name for _, name in panels[0].legend] == ["site-2", "site-3", "worst site (highest in each round)"]


def test_the_page_has_a_part_for_every_task_and_none_of_the_others_numbers(make_run):
    folder = make_run(depth=("site-3",))
    page = build_report(folder, folder / "index.html", evaluations={"site-3": {"rmse": {"mean": 7.77}}})
    text = re.sub(r"base64,[^\"]+", "", page.read_text(encoding="utf-8"))
    assert text.count('<h3 class="task">Depth (site-3)</h3>') == 3  # result, pictures, validation
    validation = text.split('<section id="validation">')[1].split("</section>")[0]
    segmentation, depth = validation.split('<h3 class="task">Depth (site-3)</h3>')
    assert "RMSE" not in segmentation and "site-3" not in segmentation and "shaft" in segmentation
    assert "Dice" not in depth and "site-1" not in depth and "class" not in re.sub("<[^>]*>", "", depth)
    assert "7.77" in text.split('<section id="result">')[1].split("</section>")[0]
    single = make_run("single")
    text = build_report(single, single / "index.html").read_text(encoding="utf-8")
    assert 'class="task"' not in text and "The whole run" not in text and text.count('<div class="tiles">') == 1


@pytest.mark.parametrize("metrics, kind, said", [
    ({"dice": {"shaft": 0.4, "wrist": None, "mean": 0.4}}, "segmentation", "Dice 0.400 (shaft 0.400 wrist –)"),
    ({"rmse": {"mean": 4.3156}, "mae": {"mean": 3.0}}, "depth", "RMSE 4.32 mm"),
    ({"rmse": {"mean": None}}, "depth", "RMSE –"),
])  # fmt: skip
def test_a_progress_line_has_the_selecting_metric_of_the_task(metrics, kind, said):
    record = {
        "round": 2, "site": "site-1", "loss": {kind: 0.5}, "metrics": metrics, "seconds": {"total": 1.5},
        "bytes": {"up": {"global": 2e6}, "down": {"global": 1e6}},
    }  # fmt: skip
    line = progress_line(record, rounds=4, seconds_left=None, metric=METRICS[kind][0])
    assert line == f"round 3/4  site-1  loss 0.500  {said}  1.5 s  up 2.0 MB, down 1.0 MB"


def test_a_site_that_was_not_drawn_is_not_missing(make_run):
    """Four rounds; site-2 is drawn in the second and fourth only, and misses the fourth."""
    run = load_run(make_run(rounds=4, sites=("site-1", "site-2")))
    for r in range(4):
        run.aggregations[r]["drawn"] = ["site-1", "site-2"] if r % 2 else ["site-1"]
    for r in (0, 2, 3):
        del run.rows["site-2"][r]
    assert run.absent("site-2") == [3] and run.absent("site-1") == []
    said = {"site-2 is missing from round 4.", "Every round used a random sample of 1 to 2 of the 2 sites."}
    assert said <= set(sentences(run))
    first = run.rows["site-2"][1]["metrics"]["dice"]["mean"]
    table = progress_table(run, run.groups[0])
    assert table.rows[1][1] == f"{first:.3f}" and "the site's first round" in table.note
    for aggregation in run.aggregations.values():
        del aggregation["drawn"]  # then every site is expected in every round
    assert run.absent("site-2") == [0, 2, 3] and "drawn" not in " ".join(sentences(run))
