"""Summarise the test scores of a run's models at the top of the page: sentences and a chart with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from shared_components.common.counted import first_few
from shared_components.core.card import Metric
from shared_components.reporting import uncertainty
from shared_components.reporting.axes import SMALL_WIDTH, Axes, colour, dot, fitting, line, short, svg, text_at
from shared_components.reporting.charts import swatch
from shared_components.reporting.figures import Panel
from shared_components.reporting.many_sites import NAMED, are_many, middle, ranked
from shared_components.reporting.records import Group, Run, mean, score, worst_site
from shared_components.reporting.uncertainty import Measured, Spread, measured, of_mean, of_site

_NAMED = 6  # maximum sites in the sentence; more sites are given as a range
_WIDE, _NARROW = 1088, 338
_LONGEST = 25  # maximum letters of a row's name; a longer one loses its middle
_STEP, _GAP = 17, 16  # pixels between models, and additional pixels between rows


@dataclass(frozen=True)
class Model:
    """Scores of a model by site, with the measurements of their videos."""

    name: str
    scores: Mapping[str, float]
    measured: Mapping[str, Measured | None]

    @property
    def mean(self) -> float:
        """Mean score over the sites."""
        return mean(list(self.scores.values()))

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        """Intervals of the sites' scores, and with the key "" of the mean score."""
        of_sites = {site: of_site(videos, place) for place, (site, videos) in enumerate(self.measured.items())}
        return {"": of_mean(list(self.measured.values())), **of_sites}


@dataclass(frozen=True)
class Row:
    """A value with its interval, and for a summary of many sites the sites' values."""

    value: float
    spread: Spread
    sites: Mapping[str, float] = field(default_factory=dict)

    @property
    def values(self) -> tuple[float, ...]:
        """All numbers to draw, some NaN."""
        return self.value, self.spread.low, self.spread.high, *self.sites.values()


@dataclass(frozen=True)
class Evaluation:
    """Models of a task, the run's own last, at the sites with scores of all models."""

    metric: Metric
    models: Sequence[Model]
    split: str
    left_out: Sequence[str]  # sites without a score of every model

    @property
    def sites(self) -> list[str]:
        """Sites with scores of all models."""
        return list(self.models[0].scores)

    def sentence(self) -> str:
        """Return each model's mean over the sites and worst site, and the last model's score at each site."""
        metric, sites, own = self.metric, self.sites, self.models[-1]
        label = metric.label + ("" if metric.higher_is_better else " (lower is better)")
        if len(sites) == 1:
            scores = ", ".join(self._score(m.name, m.scores[sites[0]], m.spreads[sites[0]]) for m in self.models)
            return f"{label} on the {self.split} frames of {sites[0]}: {scores}."
        means = ", ".join(self._score(m.name, m.mean, m.spreads[""]) for m in self.models)
        lows = []
        for model in self.models:
            site, value = worst_site(model.scores, metric)
            lows.append(f"{model.name} {metric.with_unit(value)} ({site})".strip())
        return (
            f"Mean {label} over {len(sites)} sites on the {self.split} frames: {means}. Worst site: {', '.join(lows)}. "
            f"By site{f', {own.name}' if own.name else ''}: {self._by_site(own)}."
        )

    def differences(self) -> str:
        """Return the differences of the mean between the last model and the others, on the same draws of videos."""
        own, texts = self.models[-1], []
        for other in self.models[:-1]:
            spread = of_mean(list(own.measured.values()), list(other.measured.values()))
            if not spread.known:
                continue
            ends = f"{self._signed(spread.low)} to {self._signed(spread.high)}"
            unclear = ", no clear difference because the interval includes 0" if spread.low <= 0 <= spread.high else ""
            texts.append(f"{own.name} minus {other.name}: {self._signed(own.mean - other.mean)} ({ends}){unclear}")
        return f"Differences on the same videos: {'; '.join(texts)}." if texts else ""

    def note(self) -> str:
        """Explain how the intervals were computed, and their limits."""
        counts = sorted({len(one.videos) for model in self.models for one in model.measured.values() if one})
        missing = f" Left out without a score of every model: {first_few(self.left_out)}." if self.left_out else ""
        if not counts:
            return f"No intervals, because there are no scores by video.{missing}"
        if counts == [1]:
            return f"No intervals, because every site has only one {self.split} video.{missing}"
        of = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        videos = f"each site's {of} {self.split} video{'s' if counts[-1] > 1 else ''}"
        if counts[-1] < uncertainty.FEWEST_VIDEOS:
            return f"In brackets: lowest and highest score of {videos}; a single video has no range.{missing}"
        few = " A site with two videos shows both scores." if counts[0] < uncertainty.FEWEST_VIDEOS else ""
        return (
            f"In brackets: {100 * uncertainty.LEVEL:.0f} % bootstrap intervals from {uncertainty.RESAMPLES:,} draws of "
            f"{videos}, each with all its frames. With so few videos, the intervals are rather too narrow.{few} They "
            "apply to these sites and this training; they are not confidence intervals over hospitals or seeds."
            f"{missing}"
        )

    def panel(self) -> Panel:
        """Draw a dot and an interval per model for the mean and for each site; with many sites the worst ones."""
        count, metric = len(self.sites), self.metric
        title = f"{metric.plain_heading} on the {self.split} frames"
        rows = {f"mean over {count} sites": [Row(m.mean, m.spreads[""]) for m in self.models]} if count > 1 else {}
        if not are_many(self.sites):
            return self._drawn(title, rows | self._rows(self.sites))
        middles = [(middle(model.scores.values()), model.scores) for model in self.models]
        rows[f"all {count} sites, median"] = [Row(value, Spread(), scores) for value, scores in middles]
        text = f"The {NAMED} worst of {count} sites are named. All sites are below, in All test scores."
        return replace(self._drawn(title, rows | self._rows(self._worst_first()[:NAMED])), text=text)

    def all_sites(self) -> Panel | None:
        """Draw every site, the worst first, if `panel` draws only the worst sites."""
        if not are_many(self.sites):
            return None
        return self._drawn(f"All {len(self.sites)} sites, the worst first", self._rows(self._worst_first()))

    def _worst_first(self) -> list[str]:
        return ranked(self.models[-1].scores, highest_first=not self.metric.higher_is_better)

    def _rows(self, sites: Sequence[str]) -> dict[str, list[Row]]:
        return {site: [Row(m.scores[site], m.spreads[site]) for m in self.models] for site in sites}

    def _drawn(self, title: str, rows: Mapping[str, Sequence[Row]]) -> Panel:
        names = [model.name for model in self.models]
        wide, narrow = (interval_plot(rows, names, self.metric, title=title, width=width) for width in (_WIDE, _NARROW))
        legend = [(swatch(i, line=False), name) for i, name in enumerate(names) if name]
        return Panel(title, [wide], legend, 1, narrow=[narrow])

    def _score(self, name: str, value: float, spread: Spread) -> str:
        return " ".join(filter(None, [name, self.metric.with_unit(value), self._ends(spread)]))

    def _ends(self, spread: Spread) -> str:
        text = self.metric.plain_text
        return f"({text(spread.low)} to {text(spread.high)})" if spread.known else ""

    def _signed(self, value: float) -> str:
        text = self.metric.plain_text(abs(value))
        return f"{'−' if value < 0 else '+'}{text}" if float(text) else text

    def _by_site(self, model: Model) -> str:
        if len(model.scores) > _NAMED:
            values = model.scores.values()
            return f"{self.metric.plain_text(min(values))} to {self.metric.with_unit(max(values))}"
        return ", ".join(self._score(site, value, model.spreads[site]) for site, value in model.scores.items())


def evaluation_of(run: Run, group: Group) -> Evaluation | None:
    """Collect the scores of a task's models on the evaluated frames, or None if no site has scores of all models."""
    metric = group.first
    own = run.evaluations_of(group)
    named = {**run.compared, list(run.compared)[-1]: own} if run.compared else {"": own}
    scores = {site: [score(records.get(site, {}), metric.name) for records in named.values()] for site in own}
    known = [site for site, values in scores.items() if not any(map(math.isnan, values))]
    if not known:
        return None
    models = []
    for name, records in named.items():
        videos = {site: measured(records[site], metric.name) for site in known}
        values = {site: score(records[site], metric.name) for site in known}
        models.append(Model(name if len(named) > 1 else "", values, videos))
    splits = sorted({str(record.get("split", "test")) for record in own.values()})
    return Evaluation(metric, models, " and ".join(splits), [site for site in own if site not in known])


def interval_plot(
    rows: Mapping[str, Sequence[Row]], models: Sequence[str], metric: Metric, *, title: str, width: int
) -> str:
    """Draw per row and model a dot, its interval, and its number at the right end.

    Colours follow the order of the models. Row names are above the rows in a narrow drawing, else to their left.
    """
    narrow = width <= SMALL_WIDTH
    left, top, name = (14, 40, 18) if narrow else (190, 40, 0)
    values = [v for row in rows.values() for mark in row for v in mark.values]
    axes = Axes((left, width - 54), (0, 1), fitting([v for v in values if math.isfinite(v)]))
    body, y = [], float(top)
    for number, (label, row) in enumerate(rows.items()):
        if number:
            body.append(line((0, y), (width, y), 'stroke="var(--grid)"'))
        y += _GAP / 2 + name
        level = y - 5 if narrow else y + _STEP * len(row) / 2 + 4
        shown = label if narrow or len(label) <= _LONGEST else f"{label[: _LONGEST // 2]}…{label[-(_LONGEST // 2) :]}"
        body.append(text_at(2 if narrow else 178, level, shown, anchor="start" if narrow else "end", name="cell"))
        for index, mark in enumerate(row):
            at = y + _STEP * (index + 0.5)
            tip = f"{', '.join(filter(None, [label, models[index]]))}: {short(mark.value)}"
            body.append(f"<g>{_mark(mark, axes, at, index, tip)}</g>")
            body.append(text_at(width - 4, at + 4, metric.plain_text(mark.value), anchor="end", name="cell"))
        y += _STEP * len(row) + _GAP / 2
    return svg(width, y + 26, title, [*axes.x_ticks(top - 8, y, y + 16), *body])


def _mark(mark: Row, axes: Axes, at: float, index: int, tip: str) -> str:
    """Draw the sites as small dots, the interval as a line, and the value as a dot."""
    faint = f'fill="{colour(index)}" fill-opacity="0.35"'
    drawn = "".join(dot(axes.x(v), at, 3, faint, f"{site}: {short(v)}") for site, v in mark.sites.items())
    if mark.spread.known:
        tip += f", {short(mark.spread.low)} to {short(mark.spread.high)}"
        style = f'stroke="{colour(index)}" stroke-width="3" stroke-opacity="0.55"'
        drawn += line((axes.x(mark.spread.low), at), (axes.x(mark.spread.high), at), style)
    around = ' stroke="var(--paper)"' if mark.sites else ""
    return drawn + dot(axes.x(mark.value), at, 5, f'fill="{colour(index)}"{around}', tip)
