"""What the test frames say of a run's models, the first thing on the page: a sentence, and a chart of intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

from shared_components.core.card import Metric
from shared_components.reporting.axes import SMALL_WIDTH, Axes, colour, fitting, numbered, short, svg, text_at, ticks
from shared_components.reporting.charts import swatch
from shared_components.reporting.figures import Panel
from shared_components.reporting.records import Group, Run, mean, score
from shared_components.reporting.tables import listed
from shared_components.reporting.uncertainty import (
    FEWEST_VIDEOS,
    LEVEL,
    RESAMPLES,
    Measured,
    Spread,
    measured,
    of_mean,
    of_site,
)

_NAMED = 6  # with more sites than this the sentence gives their range
_WIDE, _NARROW = 1088, 338
_STEP, _GAP = 17, 16  # pixels from one model to the next, and from one row's last to the next row's first beside that


@dataclass(frozen=True)
class Model:
    """One model's scores by site, and what each was measured on."""

    name: str
    scores: Mapping[str, float]
    found: Mapping[str, Measured | None]

    @property
    def mean(self) -> float:
        """The mean over the sites."""
        return mean(list(self.scores.values()))

    def spread(self, site: str = "") -> Spread:
        """The interval at a site; without one, of the mean."""
        return self._spreads[site]

    @cached_property  # sentence and chart show the same
    def _spreads(self) -> dict[str, Spread]:
        of_sites = {site: of_site(found, place) for place, (site, found) in enumerate(self.found.items())}
        return {"": of_mean(list(self.found.values())), **of_sites}


@dataclass(frozen=True)
class Evaluation:
    """A task's models, the run's own last, at the sites that all of them were scored at."""

    metric: Metric
    models: Sequence[Model]
    split: str
    left_out: Sequence[str]  # sites that lack a model's score

    @property
    def sites(self) -> list[str]:
        """The sites that count."""
        return list(self.models[0].scores)

    def sentence(self) -> str:
        """Say every model's mean over the sites and its worst site, and the last model's score at each site."""
        metric, sites, own = self.metric, self.sites, self.models[-1]
        label = metric.label + ("" if metric.higher_is_better else " (lower is better)")
        if len(sites) == 1:
            scores = listed(self._of(m, m.scores[sites[0]], m.spread(sites[0])) for m in self.models)
            return f"On the {self.split} frames of {sites[0]} {label} is {scores}."
        means = listed(self._of(m, m.mean, m.spread()) for m in self.models)
        worst = [(m, metric.worst(m.scores.values())) for m in self.models]
        edges = listed(f"{metric.said(value)} ({_whose(m, value)})" for m, value in worst)
        return (
            f"On the {self.split} frames mean {label} over {len(sites)} sites is {means}; at the worst site {edges}; "
            f"{f'{own.name}, ' if own.name else ''}by site: {self._by_site(own)}."
        )

    def differences(self) -> str:
        """Say what the last model's mean is beyond each other's, on the same draws of videos."""
        own, said = self.models[-1], []
        for other in self.models[:-1]:
            spread = of_mean(list(own.found.values()), list(other.found.values()))
            if not spread.known:
                continue
            ends = f"{self._signed(spread.low)} to {self._signed(spread.high)}"
            within = ": no difference beyond what other videos could bring" if spread.low <= 0 <= spread.high else ""
            said.append(f"{own.name} less {other.name} {self._signed(own.mean - other.mean)} ({ends}){within}")
        return f"On the same videos: {'; '.join(said)}." if said else ""

    def note(self) -> str:
        """Say what the intervals are of, and what they are not."""
        counts = sorted({len(one.videos) for model in self.models for one in model.found.values() if one})
        missing = f" Without a score of every model, and left out: {', '.join(self.left_out)}." if self.left_out else ""
        if not counts:
            return f"No intervals: no score is known by video.{missing}"
        if counts == [1]:
            return f"No intervals: every site has one {self.split} video.{missing}"
        of = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        what = f"of each site's {of} {self.split} video{'s' if counts[-1] > 1 else ''}"
        if counts[-1] < FEWEST_VIDEOS:
            return f"In brackets the lowest and the highest {what}; one video has no range.{missing}"
        few = " Of two videos at a site it is both scores." if counts[0] < FEWEST_VIDEOS else ""
        return (
            f"In brackets {100 * LEVEL:.0f} % of {RESAMPLES:,} draws {what} with replacement, each with all of its "
            f"frames; of so few videos that is rather too narrow.{few} It holds for these sites and this training "
            f"and is no confidence interval over hospitals or seeds.{missing}"
        )

    def panel(self) -> Panel:
        """Draw the mean and every site, a dot and an interval for each model."""
        several = len(self.sites) > 1
        rows = {f"mean over {len(self.sites)} sites": [(m.mean, m.spread()) for m in self.models]} if several else {}
        rows |= {site: [(m.scores[site], m.spread(site)) for m in self.models] for site in self.sites}
        title = f"{self.metric.plain_heading} on the {self.split} frames"
        names = [model.name for model in self.models]
        wide, narrow = (interval_plot(rows, names, self.metric, title=title, width=width) for width in (_WIDE, _NARROW))
        legend = [(swatch(i, line=False), name) for i, name in enumerate(names) if name]
        return Panel(title, [wide], legend, 1, narrow=[narrow])

    def _of(self, model: Model, value: float, spread: Spread) -> str:
        return " ".join(filter(None, [self.metric.said(value), self._ends(spread), model.name]))

    def _ends(self, spread: Spread) -> str:
        text = self.metric.plain_text
        return f"({text(spread.low)} to {text(spread.high)})" if spread.known else ""

    def _signed(self, value: float) -> str:
        text = self.metric.plain_text(abs(value))
        return f"{'−' if value < 0 else '+'}{text}" if float(text) else text

    def _by_site(self, model: Model) -> str:
        if len(model.scores) > _NAMED:
            values = model.scores.values()
            return f"{self.metric.plain_text(min(values))} to {self.metric.said(max(values))}"
        scores = model.scores.items()
        return listed(" ".join(filter(None, [s, self.metric.said(v), self._ends(model.spread(s))])) for s, v in scores)


def evaluation_of(run: Run, group: Group) -> Evaluation | None:
    """Gather the scores of a task's models on the evaluated frames; None where no site has one of every model."""
    metric = group.first
    own = run.evaluations_of(group)
    named = {**run.beside, list(run.beside)[-1]: own} if run.beside else {"": own}
    known = [site for site in own if all(_known(records, site, metric) for records in named.values())]
    if not known:
        return None
    models = [
        Model(
            name if len(named) > 1 else "",
            {site: score(records[site], metric.name) for site in known},
            {site: measured(records[site], metric.name) for site in known},
        )
        for name, records in named.items()
    ]
    splits = sorted({str(record.get("split", "test")) for record in own.values()})
    return Evaluation(metric, models, " and ".join(splits), [site for site in own if site not in known])


def _known(records: Mapping[str, Mapping], site: str, metric: Metric) -> bool:
    return not math.isnan(score(records.get(site, {}), metric.name))


def _whose(model: Model, value: float) -> str:
    return next(site for site, found in model.scores.items() if found == value)


def interval_plot(
    rows: Mapping[str, Sequence[tuple[float, Spread]]], models: Sequence[str], metric: Metric, *, title: str, width: int
) -> str:
    """Draw of every row a line per model: a dot, its interval, and its number at the right end.

    Models have colours in their order. A narrow drawing has the rows' names above them, a wide one beside them.
    """
    narrow = width <= SMALL_WIDTH
    left, top, name = (14, 40, 18) if narrow else (190, 40, 0)
    values = [v for row in rows.values() for value, spread in row for v in (value, spread.low, spread.high)]
    axes = Axes((left, width - 54), (0, 1), fitting([v for v in values if math.isfinite(v)]))
    body, y = [], float(top)
    for number, (label, row) in enumerate(rows.items()):
        if number:
            body.append(f'<line x1="0" x2="{width}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--grid)"/>')
        y += _GAP / 2 + name
        middle = y - 5 if narrow else y + _STEP * len(row) / 2 + 4
        body.append(text_at(2 if narrow else 178, middle, label, anchor="start" if narrow else "end", name="cell"))
        for index, (value, spread) in enumerate(row):
            what = ", ".join(filter(None, [label, models[index]]))
            at = y + _STEP * (index + 0.5)
            body.append(_interval(axes, at, value, spread, index, what))
            body.append(text_at(width - 4, at + 4, metric.plain_text(value), anchor="end", name="cell"))
        y += _STEP * len(row) + _GAP / 2
    lines = [
        f'<line x1="{axes.x(t):.1f}" x2="{axes.x(t):.1f}" y1="{top - 8}" y2="{y:.0f}" stroke="var(--grid)"/>'
        + text_at(axes.x(t), y + 16, text, anchor="middle")
        for t, text in numbered(ticks(*axes.x_range))
    ]
    return svg(width, y + 26, title, [*lines, *body])


def _interval(axes: Axes, y: float, value: float, spread: Spread, index: int, what: str) -> str:
    ends = f", {short(spread.low)} to {short(spread.high)}" if spread.known else ""
    line = f'x1="{axes.x(spread.low):.1f}" x2="{axes.x(spread.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"'
    drawn = f'<line {line} stroke="{colour(index)}" stroke-width="3" stroke-opacity="0.55"/>' if spread.known else ""
    dot = f'<circle cx="{axes.x(value):.1f}" cy="{y:.1f}" r="5" fill="{colour(index)}">'
    return f"<g>{drawn}{dot}<title>{escape(what)}: {short(value)}{ends}</title></circle></g>"
