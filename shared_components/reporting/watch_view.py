"""Draw one frame of `surgfl watch` as plain text: rounds, sites, scores so far and remaining time."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shared_components.common.counted import counted
from shared_components.common.progress import duration
from shared_components.core.card import DASH
from shared_components.reporting.costs import rejections
from shared_components.reporting.many_sites import folded, worst_last_models
from shared_components.reporting.records import EARLY, Group, Run, score
from shared_components.reporting.tables import Table, as_text

_BAR, _NAMED = 32, 5  # characters of the bar; maximum missing updates in the list
_UNLIMITED, _FEWEST = 10**6, 3  # columns or lines of a file; minimum rows of a table
_AROUND = 6  # lines of a table besides its rows, with an empty line
_RECENT = 5  # number of last rounds for estimating the remaining time


@dataclass(frozen=True)
class Look:
    """State of a run at one moment."""

    name: str
    status: str  # such as ``running``
    run: Run | None  # None during enrolment, or in a site's folder
    steps: Mapping[str, str]  # current steps of the sites on this machine
    since: float  # seconds since the last record


def frame(look: Look, size: tuple[int, int] | None = None) -> str:
    """Draw the state of a run; without records only the sites' steps.

    `size` is the terminal's (columns, lines). If the sites do not fit, sites with missing updates come first, then
    working sites, then the worst scores. The other sites are counted.
    """
    name, status, run, steps, since = look.name, look.status, look.run, look.steps, look.since
    columns, lines = size or (_UNLIMITED, _UNLIMITED)
    if run is None:
        table = steps_table(look)
        return f"{name}: {status}\n\n{as_text(folded(_narrowed(table, columns), max(_FEWEST, lines - _AROUND - 2)))}"
    done, parts = len(run.aggregations), [f"{run.about['label']}, {name}: {status}"]
    parts += [f"{how}: {run.info[key]}" for key, how in EARLY.items() if run.info.get(key)]
    full = _BAR * done // max(run.rounds, 1)
    left = time_left(run, since) if status == "running" else ""
    parts += [f"{'━' * full}{'·' * (_BAR - full)}  {done} of {counted(run.rounds, 'round')} done{left}", ""]
    now, end = steps if status == "running" else {}, missing_updates(run)
    end = ["", *end] if end else []
    free = lines - sum(part.count("\n") + 1 for part in parts) - len(end)
    most = max(_FEWEST, free // len(run.groups) - _AROUND)
    tables = (_narrowed(sites_table(run, group, now, most), columns) for group in run.groups)
    return "\n".join([*parts, "\n\n".join(map(as_text, tables)), *end])


def steps_table(look: Look) -> Table:
    """Tabulate the sites' current steps."""
    waiting = "waiting for its first round" if look.status == "running" else DASH
    rows = tuple(look.steps.items()) or ((DASH, waiting),)
    return Table("No rounds recorded yet", ("site", "current step"), rows, labels=2)


def time_left(run: Run, since: float) -> str:
    """Return the remaining time estimated from the last rounds, or "" before the end of the first round."""
    newest = [run.aggregations[r] for r in sorted(run.aggregations)][-_RECENT:]
    seconds = [one.get("seconds_wall", 0.0) + one.get("seconds_training", 0.0) for one in newest]
    if not any(seconds) or len(run.aggregations) >= run.rounds:
        return ""
    each = sum(seconds) / len(seconds)
    rest = each * (run.rounds - len(run.aggregations) - 1) + max(0.0, each - since)
    late = "\nthis round takes longer than the rounds before" if since > 2 * each else ""
    return f", about {duration(rest)} left{late}"


def sites_table(run: Run, group: Group, steps: Mapping[str, str], most: int) -> Table:
    """Tabulate each site's answered rounds, current step, and first and last validation score, for at most `most`."""
    metric, ended, rows = group.first, sorted(run.aggregations), []
    sites = group.sites if len(group.sites) <= most else _most_urgent(run, group, steps)
    for site in sites:
        asked = [r for r in ended if site in run.sampled(r)]
        answered = sum(r in run.rows[site] for r in asked)
        first = run.rows[site].get(run.first_round(site), {}).get("metrics") or {}
        scores = (metric.plain_text(score(one, metric.name)) for one in (first, run.last_metrics(site)))
        rows.append((site, f"{answered} of {counted(len(asked), 'round')}", steps.get(site, DASH), *scores))
    title = f"{group.title}, validation split" if len(run.groups) > 1 else "Validation split"
    head = ("site", "answered", "current step", f"{metric.plain_heading} first", "last")
    return folded(Table(title, head, tuple(rows), labels=3), most)


def _most_urgent(run: Run, group: Group, steps: Mapping[str, str]) -> list[str]:
    """Sort sites: most missed rounds first, then sites at work, then the worst last scores."""
    missed = {s: sum(s in run.sampled(r) and r not in run.rows[s] for r in run.aggregations) for s in group.sites}
    return sorted(worst_last_models(run, group), key=lambda site: (-missed[site], site not in steps))


def _narrowed(table: Table, columns: int) -> Table:
    """Shorten the sites' names and steps so that the scores, at the right end, fit into the terminal."""
    excess = max(map(len, as_text(replace(table, title="", note="", rest="")).splitlines())) - columns
    for column, least in ((2, 16), (0, 12)):
        if excess > 0 and column < table.labels:
            longest = max(len(row[column]) for row in table.rows[: table.shown or None])
            most = max(least, longest - excess)
            excess -= max(0, longest - most)
            table = replace(table, rows=tuple(_shortened(row, column, most) for row in table.rows))
    return table


def _shortened(row: tuple[str, ...], column: int, most: int) -> tuple[str, ...]:
    text = row[column]
    short = f"{text[: most - most // 2 - 1]}…{text[-(most // 2) :]}"
    return row if len(text) <= most else (*row[:column], short, *row[column + 1 :])


def missing_updates(run: Run) -> list[str]:
    """List the newest rejected or missing updates, and the sites that were left out at enrolment."""
    newest, every = rejections(run)[-_NAMED:], len(rejections(run))
    left_out = run.info.get("left_out", {})
    out = [f"missing: {site}, left out at enrolment: {reason}" for site, reason in left_out.items()][:_NAMED]
    if (others := len(left_out) - _NAMED) > 0:
        out.append(f"missing: {counted(others, 'more site')} left out at enrolment")
    late = [f"missing in round {number}: {site}, {reason}" for number, site, reason in newest]
    more = [f"missing in earlier rounds: {counted(every - _NAMED, 'update')}"] if every > _NAMED else []
    return [*out, *more, *late]
