"""PFedSIS's Figure 3: the weights as they were recorded, in heat maps and in a table."""

import json
import re
from dataclasses import replace

import pytest

from shared_components.experiments.comparison.charts import panels
from shared_components.experiments.comparison.mixing_figure import LAYER, mixing_panels
from shared_components.experiments.comparison.output import write_all
from shared_components.experiments.comparison.plan import Run, resolved
from shared_components.experiments.comparison.presets import PRESETS
from shared_components.experiments.comparison.results import Comparison, read_results
from shared_components.experiments.comparison.run import carry_out
from shared_components.experiments.comparison.tables import own_tables
from shared_components.reporting.records import Run as Records
from tests.experiments.comparison.conftest import SITES, TINY, compared, result, texts, tiny_site

FIRST, LAST = {"a": (0.5, 0.5), "b": (0.4, 0.6)}, {"a": (0.7, 0.3), "b": (0.2, 0.8)}


def mixed(seed, *rounds, layer=LAYER):
    """A PFedSIS run that has recorded these weights, by the site that receives."""
    one = result("PFedSIS*", seed, (0.5, 0.6))
    mixing = [{to: {layer: dict(zip(SITES, row, strict=True))} for to, row in weights.items()} for weights in rounds]
    aggregations = {r: {"mixing": weights, "entropy": {}} for r, weights in enumerate(mixing)}
    records = Records(
        one.folder, {"rounds": len(rounds), **one.info}, SITES, {site: {} for site in SITES}, aggregations, {}
    )
    return replace(one, records=records)


def test_a_map_of_the_first_and_of_the_last_round_has_each_seeds_weights():
    comparison = compared(mixed(1, FIRST, FIRST, LAST), mixed(2, LAST, FIRST, FIRST), layout="mixing")
    (panel,) = mixing_panels(comparison)
    names = ["seed 1, round 1", "seed 1, round 3", "seed 2, round 1", "seed 2, round 3"]
    assert all(name in chart for name, chart in zip(names, panel.charts, strict=True))
    tips = [re.findall(r"<title>(\w) receives (\w) with weight ([\d.]+)</title>", chart) for chart in panel.charts]
    pairs = [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")]
    for numbers, values in (((0, 3), ("0.5000", "0.5000", "0.4000", "0.6000")),
                            ((1, 2), ("0.7000", "0.3000", "0.2000", "0.8000"))):  # fmt: skip
        assert all(tips[n] == [(*pair, value) for pair, value in zip(pairs, values, strict=True)] for n in numbers)
    assert panel in panels(comparison, comparison.groups[0])
    assert mixing_panels(compared(mixed(1, FIRST))) == []
    assert mixing_panels(compared(mixed(1, FIRST, layer="head_personal"), layout="mixing")) == []
    assert mixing_panels(compared(result("Failed", 1, None), layout="mixing")) == []
    (panel,) = mixing_panels(compared(mixed(1, FIRST), layout="mixing"))
    assert len(panel.charts) == 1


def test_the_table_has_the_mean_over_seeds_of_the_last_round():
    (table,) = own_tables(compared(mixed(1, FIRST, LAST), mixed(2, FIRST, FIRST), layout="mixing"))
    assert table.head[:4] == ("Method", "Site that receives", "from a", "from b") and "largest change" in table.head[4]
    assert texts(table) == [
        ["PFedSIS*", "a", "0.6000 ± 0.1414", "0.4000 ± 0.1414", "0.1000 ± 0.1414"],
        ["PFedSIS*", "b", "0.3000 ± 0.1414", "0.7000 ± 0.1414", "0.1000 ± 0.1414"],
    ]  # fmt: skip


@pytest.mark.slow
def test_a_run_of_the_preset_draws_what_its_server_recorded(tmp_path):
    files = {name: tiny_site(tmp_path / "sites" / name, number) for number, name in enumerate("abc")}
    (row,) = PRESETS["pfedsis-figure3"].variants
    run = resolved(Run(row, 1, 2, TINY, files))
    folder = carry_out(run, tmp_path / "runs")
    preset = PRESETS["pfedsis-figure3"]
    comparison = Comparison(preset.title, preset.layout, (), tuple(files), read_results([run], tmp_path / "runs", {}))
    write_all(comparison, tmp_path / "out")
    lines = [json.loads(line) for line in (folder / "server" / "rounds.jsonl").read_text().splitlines()]
    recorded = [line["mixing"] for line in lines if line["kind"] == "aggregation"]
    (table,) = own_tables(comparison)
    for site, (_, name, *cells, change) in zip(files, texts(table), strict=True):
        first = recorded[0][site][LAYER]
        assert change == f"{max(abs(recorded[-1][site][LAYER][other] - first[other]) for other in files):.4f}"
        weights = recorded[-1][site][LAYER]
        assert name == site and cells == [f"{weights[other]:.4f}" for other in files]
        assert sum(weights.values()) == pytest.approx(1, abs=1e-6)
    page = (tmp_path / "out" / "index.html").read_text()
    assert all(f"seed 1, round {r}" in page for r in (1, 2)) and len(recorded) == 2
    assert "appearance head" in page
