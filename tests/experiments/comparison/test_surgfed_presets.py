"""SurgFed's presets: their rows, their sites, and rows that train a part or nothing."""

from copy import deepcopy
from dataclasses import replace

import pytest

from shared_components.core.aggregators.language_guided import LanguageGuided
from shared_components.core.bundle import load_bundle, needs_square_frames
from shared_components.core.method import load_method
from shared_components.core.partition import Role, partition_network
from shared_components.data.site_file import load_site
from shared_components.experiments.comparison.delta import delta_of
from shared_components.experiments.comparison.plan import NO_TRAINING, Run, resolved, scale_of
from shared_components.experiments.comparison.presets import PRESETS
from shared_components.experiments.comparison.sites import hospital_sites
from shared_components.experiments.comparison.surgfed_presets import HOSPITALS, SURGFED_SCALES, SURGFED_TABLES
from shared_components.networks.bundle_config import weightless
from shared_components.networks.parts import freeze, inside, resolve
from tests.experiments.comparison.conftest import THREE, compared, mixed

TEXTS = ("selection", "prompt", "none")
ROWS = {row.label: row for preset in SURGFED_TABLES.values() for row in preset.variants}


def rows(name):
    return [row.label for row in PRESETS[f"surgfed-{name}"].variants]


def test_the_tables_have_the_papers_rows():
    assert rows("table1") == [
        "Inference Only", "Local Train", "FedAvg", "FedAvg + Cluster", "FedRep", "FedProx", "MaT-FL", "FedHCA2",
        "Decoder alone, local", "SurgFed",
    ]  # fmt: skip
    assert len(rows("figure3")) == 10 and len(rows("figure3-aggregated")) == 8
    assert rows("table3") == ["Local Train", "Random of LCS", "One-hot of LCS", "SurgFed"]


def test_the_ticks_of_table_2_are_the_papers_and_say_what_its_rows_run():
    """LCS, LHA and a prompt: Fang et al., Table II, rows 1 to 5."""
    table = PRESETS["surgfed-table2"].variants
    assert [row.ticks for row in table[1:6]] == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 1, 1), (1, 1, 0)]
    texts = {(1, 0): "selection", (0, 1): "prompt", (0, 0): "none"}
    for row in table[1:]:
        lcs, lha, prompt = row.ticks
        assert row.network.get("text", "selection") == texts[lcs, prompt], row.label
        combines = load_method(row.method, **row.arguments).server.aggregator
        attends = isinstance(combines, LanguageGuided) and (combines.psi, combines.rate) != (0, 0)
        assert attends == lha, row.label


def test_rows_without_a_part_are_those_of_figure_3_and_indicators_change_one_module():
    """Row 3 of Table II has the values of "w/o LCS (Dec + Mem)", row 2 of "w/o LHA (Mem)"."""
    for label in ("SurgFed w/o LCS", "SurgFed w/o LHA", "SurgFed w/o LHA (Mem)", "SurgFed", "Local Train"):
        equal = {n: r.identity() for n, p in SURGFED_TABLES.items() for r in p.variants if r.label == label}
        first = equal["surgfed-table2"]
        assert "surgfed-figure3" in equal and all(identity == first for identity in equal.values())
    assert load_method("surgfed", **ROWS["SurgFed w/o LCS"].arguments).requires.optional_items == {"text_vector"}
    assert ROWS["Random of LCS"].arguments == {"lha_encoder": "precomputed", "text_encoder": "random"}
    assert ROWS["One-hot of LHA"].arguments == {"lha_encoder": "one_hot"}


def test_all_rows_run_on_one_network_and_fix_parts_that_it_has():
    training = scale_of("small", PRESETS["surgfed-table1"]).training
    networks = {text: weightless(load_bundle("surgfed", network={"text": text}).network) for text in TEXTS}
    for row in ROWS.values():
        run = Run(row, 1, 1, training, {})
        assert run.bundle == "surgfed"
        network = deepcopy(networks[row.network.get("text", "selection")])
        freeze(network, run.settings().fixed)
        partition = partition_network(network, load_method(row.method, **row.arguments).partition)
        for part in row.training.get("fixed", ()):
            paths = resolve(network, [part], "fixed")
            assert {p.role for p in partition if inside(p.tensor, paths)} == {Role.FIXED}


def test_a_row_that_trains_nothing_has_one_step_at_a_rate_of_0():
    row = ROWS["Inference Only"]
    run = resolved(Run(row, 1, 7, {"iterations": 5, "learning_rate": 1.0}, {}))
    assert (run.rounds, run.settings().iterations, run.settings().learning_rate) == (1, 1, 0.0)
    assert set(NO_TRAINING) <= set(run.training)
    assert row.identity() != replace(row, trains=True).identity()


def test_the_improvement_is_measured_against_local_training_of_all_parts():
    rows = {"Untrained": {"trains": False}, "Part": {"training": {"fixed": ["a"]}}, "Local": {}}
    results = [mixed(label, 1, (0.4, 0.2), 4.0, method="local", **row) for label, row in rows.items()]
    delta = delta_of(compared(*results, sites=THREE))
    assert [result.run.variant.label for result in delta.baseline] == ["Local"]
    assert delta_of(compared(*results[:2], sites=THREE)) is None


def test_the_papers_five_data_sets_are_rendered_for_two_tasks(tmp_path):
    scale = replace(SURGFED_SCALES["quick"], frames_per_video=2, height=64, width=64, videos=((1, 0, 0),) * 5)
    files = hospital_sites(tmp_path, scale, HOSPITALS)
    assert [load_site(path).task or "segmentation" for path in files.values()] == ["segmentation"] * 3 + ["depth"] * 2
    assert len({load_site(path).classes for path in files.values()}) == 4


@pytest.mark.parametrize("words", [("--preset", "surgfed-table1"), ("--methods", "surgfed")])
def test_frames_are_square_where_the_network_takes_no_other(words, planned):
    assert needs_square_frames("surgfed") and not needs_square_frames("pvt_fpn")
    for run in planned(*words, "--scale", "small", "--start", "random")[1]:
        assert run.settings().height == run.settings().width == 96
