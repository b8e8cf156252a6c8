"""PFedSIS's Figure 3: the weights by which the sites' hypernetworks mix the appearance regulation heads."""

from __future__ import annotations

from collections.abc import Sequence

from shared_components.core.card import fixed
from shared_components.experiments.comparison.results import Comparison, Result, mean_and_deviation
from shared_components.reporting.charts import heat_map
from shared_components.reporting.figures import Panel, heat_legend
from shared_components.reporting.mixing import matrices, mixed_rounds, spread
from shared_components.reporting.records import Run, round_number
from shared_components.reporting.tables import Table

LAYER = "head_appearance"  # the paper's H_ar
LAYOUT = "mixing"
DIGITS = 4  # of a weight in the table


def mixing_panels(comparison: Comparison) -> list[Panel]:
    """Draw the weights of the first and the last round as heat maps, for every run that has them."""
    found = {
        f"{_name(result, comparison)}round {round_number(r)}": matrices(run, r)[LAYER]
        for result, run in _mixed(comparison)
        for r in dict.fromkeys((mixed_rounds(run)[0], mixed_rounds(run)[-1]))
    }
    if comparison.layout != LAYOUT or not found:
        return []
    sites = comparison.sites
    full = spread(found, len(sites))
    labels = [str(number) for number in range(1, len(sites) + 1)]
    maps = [heat_map(rows, labels=labels, title=title, names=sites, spread=full) for title, rows in found.items()]
    text = (
        f"Aggregation weights of the layer {LAYER}, as in PFedSIS, Fig. 3. Row: the site that receives; column: the "
        "site whose parameters it takes. No colour: an equal share. Hypernetworks begin from random weights, the same "
        "for every seed, so that the first round has a pattern, too: only the difference from it is learnt."
    )
    return [Panel("How the sites' appearance heads are mixed", maps, heat_legend(sites, full), 0, text)]


def mixing_table(comparison: Comparison, note: str) -> Table:
    """Tabulate the weights of the last round, a row for every site that receives, and what training has changed."""
    by_label: dict[str, list[Run]] = {}
    for result, run in _mixed(comparison):
        by_label.setdefault(result.run.variant.label, []).append(run)
    rows = []
    for label, runs in by_label.items():
        for i, site in enumerate(comparison.sites):
            first, last = ([matrices(run, mixed_rounds(run)[end])[LAYER][i] for run in runs] for end in (0, -1))
            changes = [
                max(abs(b - a) for a, b in zip(before, after, strict=True))
                for before, after in zip(first, last, strict=True)
            ]
            rows.append((label, site, *map(_text, zip(*last, strict=True)), _text(changes)))
    head = (
        "Method", "Site that receives", *(f"from {site}" for site in comparison.sites),
        "largest change since the first round",
    )  # fmt: skip
    return Table(f"{comparison.title}, last round", head, tuple(rows), 2, note, grouped=True)


def _mixed(comparison: Comparison) -> list[tuple[Result, Run]]:
    """Return the runs whose server has mixed the layer."""
    found = [(result, result.records) for result in comparison.results if result.records]
    return [(result, run) for result, run in found if LAYER in matrices(run)]


def _name(result: Result, comparison: Comparison) -> str:
    label = f"{result.run.variant.label}, " if len(comparison.labels) > 1 else ""
    return f"{label}seed {result.run.seed}, "


def _text(values: Sequence[float]) -> str:
    mean, deviation = mean_and_deviation(values)
    return f"{fixed(mean, DIGITS)} ± {fixed(deviation, DIGITS)}" if len(values) > 1 else fixed(mean, DIGITS)
