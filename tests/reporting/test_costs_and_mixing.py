"""Costs: bytes summed, seconds averaged, what a noisy run has spent; mixing: matrices as recorded, told plainly."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from shared_components.federation.site.noisy_updates import RECORD
from shared_components.reporting import costs
from shared_components.reporting.figures import time_panels
from shared_components.reporting.mixing import entropies, matrices, own_weights, spread, verdicts
from shared_components.reporting.records import Run, load_run
from shared_components.reporting.report import TEMPLATES, build_report, contents
from shared_components.reporting.summary import sentences, tiles
from shared_components.reporting.tensorboard import progress_line
from tests.reporting.conftest import METRICS, SEGMENTATION, change_info, write_run


def line(r, up, training, total):
    return {
        "round": r, "samples": 40, "loss": {"segmentation": 0.5}, "memory_mb": 100 + r,
        "bytes": {"up": {"global": up, "mixed": 1}, "down": {"global": 2 * up}},
        "seconds": {"training": training, "total": total},
    }  # fmt: skip


ROWS = {
    "a": {0: line(0, 10, 1.0, 2.0), 1: line(1, 20, 3.0, 3.0), 2: {"round": 2, "metrics": {}}},
    "b": {0: line(0, 30, 3.0, 3.0)},
}
AGGREGATIONS = {0: {"seconds": 0.5, "rejected": [{"site": "b", "reason": "late"}]}}
RUN = Run(Path(), {}, ("a", "b"), ROWS, AGGREGATIONS, {})


def test_bytes_are_summed_over_sites_by_role_and_seconds_are_means_of_trained_rounds_only():
    assert costs.bytes_by_round(RUN, "up") == {0: {"global": 40, "mixed": 2}, 1: {"global": 20, "mixed": 1}}
    assert costs.bytes_by_round(RUN, "down") == {0: {"global": 80}, 1: {"global": 40}}
    assert costs.traffic_table(RUN).rows == (("global", "60", "120"), ("mixed", "3", "0"))
    assert costs.seconds_by_round(RUN) == {0: {"training": 2.0, "other": 0.5}, 1: {"training": 3.0}}
    assert costs.cost_table(RUN).rows[0] == ("a", "40", "2", "0.00", "0.00", "2.5", "2.0", "101")
    assert costs.rejections(RUN) == [("1", "b", "late")]


SLOW = {"starting": 4.0, "training": 2.0, "total": 3.0, "waiting": 5.0}  # total does not know the process' start
QUICK = {"training": 2.0, "total": 8.5, "waiting": 0.5}


def waited():
    """Two rounds of two sites and the last delivery, which is not trained on."""
    rows = {
        site: {r: {**line(r, 1, 0, 0), "seconds": seconds} for r in range(2)}
        | {2: {"round": 2, "metrics": {}, "seconds": {"validating": 40.0, "total": 40.0}}}
        for site, seconds in (("a", SLOW), ("b", QUICK))
    }
    metrics = {"segmentation": [METRICS["segmentation"][0].to_json()]}
    info = {"rounds": 2, "cards": dict.fromkeys("ab", SEGMENTATION.to_json()), "metrics": metrics}
    return Run(Path(), info, ("a", "b"), rows, {r: {"seconds": 0.5} for r in range(2)}, {})


def test_every_place_gives_the_same_seconds_of_a_round():
    """By hand: a works 4 + 2 s, b 8.5 s; the mean is 7.25 s, without waiting, aggregating and the last delivery."""
    run = waited()
    assert [row[5] for row in costs.cost_table(run).rows] == ["6.0", "8.5"]
    assert [sum(column.values()) for column in costs.seconds_by_round(run).values()] == [7.25, 7.25]
    assert costs.round_seconds(run) == 7.25
    assert ("s per round and site", "7.2") in tiles(run)
    assert next(text for text in sentences(run) if text.startswith("On average")).endswith("works 7.2 s per round.")
    tips = [tip for panel in time_panels(run) for tip in re.findall("<title>([^<]*)", "".join(panel.charts))]
    assert {"a, round 1: 6.000", "b, round 2: 8.500"} <= set(tips)
    record = {**run.rows["a"][0], "site": "a", "bytes": {"up": {}, "down": {}}}
    assert "  6.0 s  " in progress_line(record, rounds=2, seconds_left=None)
    assert costs.idle_by_round(run)[0] == {"waiting for other sites": 2.75, "aggregation (server)": 0.5}
    assert "without waiting for other sites or the server" in costs.cost_table(run).note


def taught():
    """The run above, in whose rounds the server trains for 3.5 and 5.5 seconds."""
    lines = {r: {"seconds": 0.5, "seconds_wall": 12.0, "seconds_training": 3.5 + 2 * r} for r in range(2)}
    return replace(waited(), aggregations=lines)


def test_the_sites_wait_for_a_server_that_trains():
    """By hand: 0.5 + 3.5 s of 12 + 4 s, 0.5 + 5.5 s of 12 + 6 s; the mean is 5 s."""
    table = costs.server_table(taught())
    assert table is not None and table.head[4:] == ("waiting for the server s", "share of the round %")
    assert table.rows == (("1", "12.0", "0.5", "3.5", "4.0", "25"), ("2", "12.0", "0.5", "5.5", "6.0", "33"))
    idle = {"waiting for other sites": 2.75, "aggregation (server)": 0.5, "training (server)": 5.5}
    assert costs.idle_by_round(taught())[1] == idle
    said = next(text for text in sentences(taught()) if text.startswith("On average"))
    assert said.endswith("works 7.2 s per round. Then the sites wait 5.0 s while the server trains.")
    page = TEMPLATES.get_template("report.html.j2").render(**contents(taught()))
    assert "Waiting for the server" in page and ">33</td>" in page
    assert "Waiting for the server" not in TEMPLATES.get_template("report.html.j2").render(**contents(waited()))
    # a server that does not train has no table
    assert costs.server_table(waited()) is None and costs.server_seconds(waited()) == {}
    lines = {0: {"seconds_training": 2.0}, 1: {"seconds": 0.5}}  # of an older version, and a round without
    table = costs.server_table(replace(waited(), aggregations=lines))
    assert table is not None and table.rows == (("1", "–", "–", "2.0", "–", "–"),)


NOISE = {"clip": 0.5, "noise_multiplier": 1.25, "delta": 1e-5, "unit": "all data of a site"}


@pytest.fixture
def noisy(tmp_path):
    """Return a run with the privacy record of the first site; the other sites' folders are elsewhere."""
    folder = write_run(tmp_path / "run", rounds=2)
    change_info(folder, privacy=NOISE)
    records = folder / "server" / "rounds.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "aggregation":
            line["epsilon"] = 10.0 * (line["round"] + 1)
        elif line["kind"] == "site":
            line["noisy"] = line["round"] < 2
            for key in ("loss", "metrics", "samples", "seconds", "memory_mb"):
                line.pop(key, None)
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = {"updates": 4, "clipped": 3, "epsilon": 31.4159, "epsilon_of_all_jobs": 99.0}
    (folder / "site-1" / RECORD).write_text(json.dumps(own))
    return folder


def test_the_privacy_table_has_the_settings_and_the_loss_of_every_site(noisy):
    first, second, third = costs.privacy_table(load_run(noisy)).rows
    said = ("all data of a site", "0.5", "1.25", "1e-05")
    assert first == ("site-1", *said, "31.42", "4", "75 %", "99")
    assert second == ("site-2", *said, "20", "–", "–", "–") and third[0] == "site-3"
    (noisy / "server" / "rounds.jsonl").write_text("")  # of a run that has just begun
    assert costs.privacy_table(load_run(noisy)).rows[1][5:] == ("–", "–", "–", "–")


def test_only_the_page_of_a_noisy_run_has_the_section_on_privacy(noisy, tmp_path):
    page = build_report(noisy, tmp_path / "report.html").read_text()
    assert 'href="#privacy"' in page and "31.42" in page and "Privacy by site" in page
    assert "Dice stays at the sites" in page and "reported a first" not in page
    page = build_report(write_run(tmp_path / "plain", rounds=2), tmp_path / "plain.html").read_text()
    assert "privacy" not in page.lower()


def run_with(*aggregations, sites=("a", "b")):
    return Run(Path(), {}, sites, {site: {} for site in sites}, dict(enumerate(aggregations)), {})


MIXED = {
    "mixing": {"a": {"head": {"a": 0.75, "b": 0.25}, "body": {"a": 0.25, "b": 0.75}}},
    "entropy": {"hypernetwork": 0.81},
}


def test_matrix_rows_are_receiving_sites_of_the_newest_round_with_weights_and_absent_sites_are_nan():
    older = {"mixing": {"a": {"head": {"a": 1.0, "b": 0.0}}}}
    first, second = matrices(run_with(older, MIXED, {"entropy": {}}))["head"]
    assert first == [0.75, 0.25] and all(map(math.isnan, second))
    assert spread({"head": [[0.9, 0.1]]}, 2) == pytest.approx(0.4)
    assert spread({"head": [[0.5001, 0.4999]]}, 2) == 0.125  # nearly equal weights keep a pale colour


def test_own_weight_is_the_mean_over_layers_and_stands_beside_the_equal_share():
    assert own_weights(run_with(MIXED)) == {"a": {0: 0.5}, "b": {}}
    assert "weights its own parameters with 0.50 on average; an equal share is 0.50" in verdicts(run_with(MIXED))[0]


def test_entropy_by_site_is_averaged_and_decides_how_near_to_plain_averaging_a_mixing_is_called():
    assert entropies(run_with({"entropy": {"hypernetwork": {"a": 1.0, "b": 0.5}}}))["hypernetwork"] == {0: 0.75}
    assert math.isnan(entropies(run_with({"entropy": {"sensitivity": None}}))["sensitivity"][0])
    entropy = {"sensitivity_raw": 0.9995, "sensitivity": 0.9, "hypernetwork": 0.997}
    plain, other, near = verdicts(run_with({"entropy": entropy}))
    assert "is practically plain averaging (normalised entropy 0.99950" in plain
    assert "differs from plain averaging (normalised entropy 0.900" in other
    assert "is close to plain averaging" in near
    # FedAvg records no entropy, and a single site has nothing to mix
    assert verdicts(run_with({"entropy": {}})) == []
    assert "nothing was mixed" in verdicts(run_with({"entropy": {"hypernetwork": 1.0}}, sites=("a",)))[0]
