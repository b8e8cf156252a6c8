"""Show PFedSIS's Figure 3: the aggregation weights of the appearance head, from the sites' hypernetworks."""

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
    """Draw heat maps of the weights in the first and the last round of each run."""
    maps = {}
    for result, run in _runs(comparison):
        label = f"{result.run.variant.label}, " if len(comparison.labels) > 1 else ""
        for r in (mixed_rounds(run)[0], mixed_rounds(run)[-1]):
            maps[f"{label}seed {result.run.seed}, round {round_number(r)}"] = matrices(run, r)[LAYER]
    if comparison.layout != LAYOUT or not maps:
        return []
    sites = comparison.sites
    full = spread(maps, len(sites))
    labels = [str(number) for number in range(1, len(sites) + 1)]
    charts = [heat_map(rows, labels=labels, title=title, names=sites, spread=full) for title, rows in maps.items()]
    text = (
        f"Aggregation weights of the layer {LAYER}, as in PFedSIS, Fig. 3. Row: the site that receives. Column: the "
        "site that sends. No colour: an equal share. All seeds start from the same random hypernetworks, so only "
        "the difference from the first round is learned."
    )
    return [Panel("How the sites' appearance heads are mixed", charts, heat_legend(sites, full), 0, text)]


def mixing_table(comparison: Comparison, note: str) -> Table:
    """Tabulate the weights of the last round by receiving site, and the largest change since the first round."""
    by_label: dict[str, list[Run]] = {}
    for result, run in _runs(comparison):
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
    sites = (f"from {site}" for site in comparison.sites)
    head = ("Method", "Site that receives", *sites, "largest change since the first round")
    return Table(f"{comparison.title}, last round", head, tuple(rows), 2, note, grouped=True)


def _runs(comparison: Comparison) -> list[tuple[Result, Run]]:
    """Return the runs with recorded weights of the layer."""
    results = [(result, result.records) for result in comparison.results if result.records]
    return [(result, run) for result, run in results if LAYER in matrices(run)]


def _text(values: Sequence[float]) -> str:
    mean, deviation = mean_and_deviation(values)
    return f"{fixed(mean, DIGITS)} ± {fixed(deviation, DIGITS)}" if len(values) > 1 else fixed(mean, DIGITS)
