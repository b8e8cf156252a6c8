"""The comparison as one HTML page without external links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shared_components.experiments.comparison.charts import Panel, panels
from shared_components.experiments.comparison.gallery import Gallery, gallery
from shared_components.experiments.comparison.results import Comparison
from shared_components.experiments.comparison.tables import facts
from shared_components.reporting.groups import Group
from shared_components.reporting.report import TEMPLATES
from shared_components.reporting.tables import Table


def as_page(comparison: Comparison, tables: Sequence[Table]) -> str:
    """Write pictures, charts and tables of all tasks."""
    failed = [result for result in comparison.results if result.scores is None]
    parts = [(group, gallery(comparison, group), panels(comparison, group)) for group in comparison.groups]
    return TEMPLATES.get_template("comparison.html.j2").render(
        title=comparison.title,
        tables=tables,
        parts=parts,
        links=list(_links(parts, bool(failed))),
        failed=failed,
        facts=facts(comparison),
        done=len(comparison.results) - len(failed),
        runs=len(comparison.results),
    )


def _links(parts: Sequence[tuple[Group, Gallery | None, list[Panel]]], failed: bool) -> Iterator[tuple[str, str]]:
    """Yield the page's parts as anchors and names: of several tasks the tasks, of one its charts."""
    if failed:
        yield "missing", "Without a result"
    if len(parts) > 1:
        yield from ((f"task-{number}", group.task) for number, (group, _, _) in enumerate(parts, start=1))
    else:
        for _, pictures, charts in parts:
            names = [chart.title for chart in charts]
            names[1:1] = ["Frames"] if pictures else []
            yield from ((f"{name.lower().replace(' ', '-')}-1", name) for name in names)
    yield "tables", "Tables"
