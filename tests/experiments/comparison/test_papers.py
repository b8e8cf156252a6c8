"""Each table and figure of the four papers has a preset or a benchmark, or a reason why it has none."""

import importlib
from dataclasses import dataclass

import pytest

from shared_components.data.splits import FEW_SHOT
from shared_components.experiments.comparison.mixing_figure import LAYOUT
from shared_components.experiments.comparison.presets import PRESETS
from shared_components.tasks import phases


@dataclass(frozen=True)
class Shown:
    """A preset that shows it, the layout of its page and, for violins, the pair and the metric."""

    preset: str
    layout: str = ""
    violin: str = ""
    metric: str = ""


@dataclass(frozen=True)
class Counted:
    """A benchmark, or data of the library, that has it."""

    module: str
    name: str


@dataclass(frozen=True)
class Nothing:
    """Not a result, for a reason."""

    reason: str


DIAGRAM, SITES = Nothing("a diagram of the method"), Nothing("the numbers of the sites' data")


def violin(preset, pair, metric=""):
    return Shown(f"fl-endovit-{preset}", violin=pair, metric=metric)


def stages(preset, pair, metric):
    return tuple(violin(preset, f"{pair}, {stage}", metric) for stage in ("S1", "S2"))


ROMAN = ("I", "II", "III", "IV")
# By hand from the papers, in their order. FL-EndoViT's captions of Figures 6 and 11 repeat the captions of Figures 5
# and 10, accuracy; the tables beside them have accuracy and F1.
PAPERS = {
    "PFedSIS": {
        "Figure 1": DIAGRAM,
        "Table I": Shown("pfedsis-table1"),
        "Figure 2": Shown("pfedsis-figure2", "pictures"),
        "Table II": Shown("pfedsis-table2", "costs"),
        "Figure 3": Shown("pfedsis-figure3", LAYOUT),
        "Table III": Shown("pfedsis-table3", "ablation"),
        "Table IV": Shown("pfedsis-table4", "ablation"),
    },
    "FedST": {
        "Figure 1": Nothing("examples of the sites' frames"), "Figure 2": DIAGRAM, "Table 1": SITES,
        **{f"Table {n}": Shown(f"fedst-table{n}") for n in (2, 4, 5, 6, 7)},
        **{f"Table {n}": Shown(f"fedst-table{n}", "held-out") for n in (3, 8)},
        "Table 9": Shown("fedst-table9", "costs"),
        "Figure 3": Shown("fedst-figure3", "pictures"), "Figure 4": Shown("fedst-figure4", "held-out pictures"),
        **{f"Figure {n}": Shown(f"fedst-figure{n}") for n in (5, 6, 7)},
    },
    "SurgFed": {
        "Figure 1": DIAGRAM, "Figure 2": DIAGRAM,
        **{f"Table {roman}": Shown(f"surgfed-table{n}") for n, roman in enumerate(ROMAN, 1)},
        "Figure 3": Shown("surgfed-figure3"), "Figure 4": Shown("surgfed-figure4", "pictures"),
        "Table ??": Shown("surgfed-efficiency", "costs"),  # the text refers to it, without a number
    },
    "FL-EndoViT": {
        "Figure 1": DIAGRAM,
        **{f"Table {n}": Shown(f"fl-endovit-table{n}", "patches") for n in (1, 7)},
        **{f"Table {n}": Shown(f"fl-endovit-table{n}") for n in (2, 3, 4, 5, 10)},
        "Table 6": tuple(Shown(f"fl-endovit-table6-{task}") for task in FEW_SHOT),
        "Table 8": Counted("evidence.benchmarks.pretraining_cost", "counted"),
        "Table 9": Counted("shared_components.data.splits", "FEW_SHOT"),
        "Figure 2": violin("table2", "all, high"),
        "Figure 3": violin("table2", "all, low"),
        "Figure 4": violin("table3", "all"),
        **{f"Figure {n}": stages("table4", "all", metric) for n, metric in ((5, "accuracy"), (6, "f1"))},
        "Figure 7": violin("table6-segmentation", "all, high, frozen"),
        "Figure 8": violin("table6-segmentation", "all, low, frozen"),
        "Figure 9": violin("table6-triplets", "all, frozen"),
        **{f"Figure {n}": stages("table6-phases", "all, frozen", name) for n, name in ((10, "accuracy"), (11, "f1"))},
        "Table 11": Shown("fl-endovit-table11", "classes"),
    },
}  # fmt: skip
COUNTS = {"PFedSIS": (4, 3), "FedST": (9, 7), "SurgFed": (4, 4), "FL-EndoViT": (11, 11)}
"""Numbered tables and figures."""
EXTRA = {"fl-endovit-aggregation", "fedsurg", "surgfed-figure3-aggregated"}
"""Presets beside the papers' tables: Table 1's schemes on segmentation, a challenge, and the released code's switch."""
EACH = [(paper, name, what) for paper, entries in PAPERS.items() for name, what in entries.items()]


def shown(what):
    return [one for one in (what if isinstance(what, tuple) else (what,)) if isinstance(one, Shown)]


@pytest.mark.parametrize("paper", PAPERS)
def test_the_list_has_every_number_of_a_paper(paper):
    tables, figures = COUNTS[paper]
    roman = any("Table I" == name for name in PAPERS[paper])
    numbers = ROMAN[:tables] if roman else range(1, tables + 1)
    expected = {f"Table {number}" for number in numbers} | {f"Figure {number}" for number in range(1, figures + 1)}
    assert PAPERS[paper].keys() - {"Table ??"} == expected


@pytest.mark.parametrize(("paper", "name", "what"), EACH, ids=[f"{paper}, {name}" for paper, name, _ in EACH])
def test_it_has_a_preset_or_a_benchmark_or_a_reason(paper, name, what):
    if isinstance(what, Nothing):
        assert what.reason
    elif isinstance(what, Counted):
        assert getattr(importlib.import_module(what.module), what.name)
    for one in shown(what):
        preset = PRESETS[one.preset]
        assert f"of {paper}" in preset.title and preset.variants
        if not one.violin and name != "Table ??":
            assert f"{name}:" in f"{preset.title}:" or f"{name} " in preset.title
        if one.layout:
            assert preset.layout == one.layout
    assert shown(what) or isinstance(what, Nothing | Counted)


@pytest.mark.parametrize("one", [one for _, _, what in EACH for one in shown(what) if one.violin], ids=str)
def test_a_figure_of_violins_is_a_pair_of_rows_by_its_metric(one):
    preset = PRESETS[one.preset]
    labels = {row.label for row in preset.variants}
    (pair,) = (v for v in preset.versus if one.violin in v.rows and v.metric == one.metric)
    assert pair.models == ("FL-EndoViT", "CEN-EndoViT") and set(pair.rows[one.violin]) <= labels
    assert not one.metric or one.metric in {metric.name for metric in phases.METRICS}


def test_every_preset_is_of_a_paper_or_named_here():
    assert {one.preset for _, _, what in EACH for one in shown(what)} | EXTRA == PRESETS.keys()
