"""Draw one frame of `surgfl watch` as plain text: rounds, sites, scores so far and remaining time."""

from collections.abc import Mapping

from shared_components.common.counted import counted
from shared_components.common.progress import duration
from shared_components.core.card import DASH
from shared_components.reporting.costs import rejections
from shared_components.reporting.records import EARLY, Group, Run, score
from shared_components.reporting.tables import Table, as_text

_BAR, _NAMED = 32, 5  # characters of the bar; maximum missing updates in the list
_RECENT = 5  # number of last rounds for estimating the remaining time


def frame(name: str, status: str, run: Run | None, steps: Mapping[str, str], *, since: float) -> str:
    """Draw the state of a run; without records, during enrolment or in a site's folder, only the sites' steps.

    `status` is a word such as ``running``, `steps` are the current steps of the sites on this machine, and `since` are
    the seconds since the last record.
    """
    if run is None:
        rows = tuple(steps.items()) or ((DASH, "waiting for its first round" if status == "running" else DASH),)
        table = Table("No rounds recorded yet", ("site", "current step"), rows, labels=2)
        return f"{name}: {status}\n\n{as_text(table)}"
    done, parts = len(run.aggregations), [f"{run.about['label']}, {name}: {status}"]
    parts += [f"{how}: {run.info[key]}" for key, how in EARLY.items() if run.info.get(key)]
    full = _BAR * done // max(run.rounds, 1)
    left = time_left(run, since) if status == "running" else ""
    parts += [f"{'━' * full}{'·' * (_BAR - full)}  {done} of {counted(run.rounds, 'round')} done{left}", ""]
    now = steps if status == "running" else {}
    parts.append("\n\n".join(as_text(_sites(run, group, now)) for group in run.groups))
    return "\n".join([*parts, *_missing(run)])


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


def _sites(run: Run, group: Group, steps: Mapping[str, str]) -> Table:
    """Tabulate each site's answered rounds, current step, and first and last validation score."""
    metric, ended, rows = group.first, sorted(run.aggregations), []
    for site in group.sites:
        asked = [r for r in ended if site in run.sampled(r)]
        answered = sum(r in run.rows[site] for r in asked)
        first = run.rows[site].get(run.first_round(site), {}).get("metrics") or {}
        scores = (metric.plain_text(score(one, metric.name)) for one in (first, run.last_metrics(site)))
        rows.append((site, f"{answered} of {counted(len(asked), 'round')}", steps.get(site, DASH), *scores))
    title = f"{group.title}, validation split" if len(run.groups) > 1 else "Validation split"
    head = ("site", "answered", "current step", f"{metric.plain_heading} first", "last")
    return Table(title, head, tuple(rows), labels=3)


def _missing(run: Run) -> list[str]:
    """List the newest rejected or missing updates, and the sites that were left out at enrolment."""
    newest, every = rejections(run)[-_NAMED:], len(rejections(run))
    out = [f"missing: {site}, left out at enrolment: {reason}" for site, reason in run.info.get("left_out", {}).items()]
    late = [f"missing in round {number}: {site}, {reason}" for number, site, reason in newest]
    more = [f"missing in earlier rounds: {counted(every - _NAMED, 'update')}"] if every > _NAMED else []
    return ["", *out, *more, *late] if out or late else []
