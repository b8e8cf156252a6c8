"""Compute the costs of a run: bytes by role, seconds by stage, memory, missing updates and privacy loss.

A site's seconds in a round are always `site_seconds`: its own work from the start of its process to its reply, without
waiting for other sites or the server. Only rounds with training count; the final model is only validated.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shared_components.common.counted import counted
from shared_components.core.card import DASH, fixed
from shared_components.reporting.many_sites import MOST, NAMED, are_many, folded, middle, ranked
from shared_components.reporting.records import NAN, Run, mean, read_json, round_number, site_folder
from shared_components.reporting.tables import Table

MEGABYTE = 1_000_000
Stacks = dict[int, dict[str, float]]  # round -> part -> value
_COST_NOTE = (
    "1 MB = 1,000,000 bytes, summed over the run; seconds are means. The seconds per round are a site's own work from "
    "the start to the reply, without waiting for other sites or the server"
)
_COST_HEAD = (
    "site", "training frames", "rounds trained", "sent MB", "received MB", "s per round", "training s per round",
    "peak memory MB",
)  # fmt: skip
_SERVER_NOTE = (
    "The server trains after every aggregation, and all sites wait for it. The sites' work lasts from the start of a "
    "round to the last reply"
)
PRIVACY_RECORD = "privacy.json"
_PRIVACY_HEAD = (
    "site", "unit", "clip", "noise", "delta", "epsilon", "updates sent", "updates clipped", "epsilon of all jobs",
)  # fmt: skip
_PRIVACY_NOTE = (
    "The noise on every number of an update has the standard deviation noise x clip. Epsilon and delta compare two "
    "arbitrary data sets of a site. An epsilon of a few means that the updates reveal little about the data; an "
    "epsilon of hundreds guarantees almost nothing. The number of clipped updates depends on the data, so each site "
    "keeps it in its own folder; a dash means that this folder is not available here"
)


def bytes_by_round(run: Run, direction: str) -> Stacks:
    """Sum the bytes of all sites by round and role; direction is "up" (sent by the sites) or "down"."""
    stacks: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in (row for site in run.sites for row in run.rows[site].values()):
        for role, count in (row.get("bytes") or {}).get(direction, {}).items():
            stacks[row["round"]][role] += count
    return {r: dict(stack) for r, stack in sorted(stacks.items())}


def site_seconds(seconds: Mapping[str, float]) -> float:
    """Return the seconds of a site's own work from its record's `seconds`, or NaN without a record."""
    return sum(_stages(seconds).values()) if seconds else NAN


def trained(run: Run, site: str) -> dict[int, dict[str, Any]]:
    """Return a site's records of its training rounds."""
    return {r: row for r, row in sorted(run.rows[site].items()) if row.get("loss") or row.get("noisy")}


def seconds_by_round(run: Run) -> Stacks:
    """Return the mean seconds of the sites' own work by round and stage; "other" is the rest of the total."""
    return _means(run, _stages)


def idle_by_round(run: Run) -> Stacks:
    """Return by round the seconds without work at the sites: the mean waiting time and the server's steps."""
    waiting = "waiting for other sites"
    stacks = _means(run, lambda seconds: {waiting: seconds["waiting"]} if "waiting" in seconds else {})
    steps = {"seconds": "aggregation (server)", "seconds_training": "training (server)"}
    for r, stack in stacks.items():
        line = run.aggregations.get(r, {})
        stack |= {step: line[key] for key, step in steps.items() if key in line}
    return {r: stack for r, stack in stacks.items() if stack}


def server_seconds(run: Run) -> dict[int, tuple[float, ...]]:
    """Return (seconds until the last reply, aggregation seconds, training seconds) by round with server training.

    The sites wait during the aggregation and the server's training.
    """
    lines = {r: line for r, line in sorted(run.aggregations.items()) if "seconds_training" in line}
    keys = ("seconds_wall", "seconds", "seconds_training")
    return {r: tuple(float(line.get(key, NAN)) for key in keys) for r, line in lines.items()}


def server_table(run: Run) -> Table | None:
    """Tabulate by round how long the sites waited for the server, or return None if the server does not train."""
    rows = []
    for r, (sites, averaging, training) in server_seconds(run).items():
        waited = averaging + training
        share = 100 * waited / (sites + waited) if sites + waited else NAN
        seconds = (fixed(value, 1) for value in (sites, averaging, training, waited))
        rows.append((str(round_number(r)), *seconds, fixed(share, 0)))
    head = ("round", "sites' work s", "aggregation s", "training s", "waiting for the server s", "share of the round %")
    return Table("Waiting for the server", head, tuple(rows), note=_SERVER_NOTE) if rows else None


def round_seconds(run: Run) -> float:
    """Return the mean of `site_seconds` over all sites and trained rounds."""
    return mean([site_seconds(row.get("seconds") or {}) for site in run.sites for row in trained(run, site).values()])


def round_bytes(run: Run, direction: str) -> float:
    """Return the mean bytes per site and round with training."""
    rows = [row for site in run.sites for row in trained(run, site).values() if row.get("bytes")]
    return mean([float(sum(row["bytes"].get(direction, {}).values())) for row in rows])


def parts(*stacks: Stacks) -> list[str]:
    """List the parts that occur in any round, in the order of the records."""
    return list(dict.fromkeys(part for stack in stacks for column in stack.values() for part in column))


def cost_table(run: Run) -> Table:
    """Tabulate data, bytes, time and memory by site."""
    numbers = {site: _cost_numbers(run, site) for site in run.sites}
    if not are_many(run.sites):
        return Table("Cost by site", _COST_HEAD, _cost_rows(numbers), note=_COST_NOTE)
    columns = list(zip(*numbers.values(), strict=True))
    summary = {name: [reduce(column) for column in columns] for name, reduce in _COST_SUMMARY.items()}
    slowest = ranked({site: row[_SECONDS] for site, row in numbers.items()}, highest_first=True)
    rows = _cost_rows(summary | {site: numbers[site] for site in slowest})
    return folded(Table("Cost by site", _COST_HEAD, rows, note=_COST_NOTE), len(summary) + NAMED)


def traffic_table(run: Run) -> Table:
    """Tabulate the bytes by role, summed over all sites and rounds."""
    up, down = bytes_by_round(run, "up"), bytes_by_round(run, "down")
    rows = []
    for role in parts(up, down):
        sums = (sum(column.get(role, 0) for column in stacks.values()) for stacks in (up, down))
        rows.append((role, *(f"{round(total):,}" for total in sums)))
    return Table("Bytes by role, all sites and rounds", ("role", "sent by sites", "sent to sites"), tuple(rows))


def rejections(run: Run) -> list[tuple[str, str, str]]:
    """List rejected and missing updates as (round, site, reason)."""
    return [
        (str(round_number(r)), str(entry.get("site", DASH)), str(entry.get("reason", DASH)))
        for r, line in sorted(run.aggregations.items())
        for entry in line.get("rejected") or []
    ]


def _means(run: Run, pick: Callable[[Mapping[str, float]], dict[str, float]]) -> Stacks:
    """Average by round and part the seconds that `pick` selects from each site's record."""
    by_round: defaultdict[int, list[dict[str, float]]] = defaultdict(list)
    for site in run.sites:
        for r, row in trained(run, site).items():
            if row.get("seconds"):
                by_round[r].append(pick(row["seconds"]))
    return {
        r: {part: sum(row.get(part, 0.0) for row in rows) / len(rows) for part in parts(dict(enumerate(rows)))}
        for r, rows in sorted(by_round.items())
    }


def _stages(seconds: Mapping[str, float]) -> dict[str, float]:
    stages = {name: value for name, value in seconds.items() if name not in ("total", "waiting")}
    other = seconds.get("total", 0.0) - sum(stages.values())
    return stages | {"other": other} if other > 0.05 else stages


def _cost_numbers(run: Run, site: str) -> list[float]:
    """Return the numbers of a site's row, in the order of `_COST_HEAD`."""
    every, rows = run.rows[site].values(), list(trained(run, site).values())
    ways = [sum(sum((row.get("bytes") or {}).get(way, {}).values()) for row in every) for way in ("up", "down")]
    seconds = [row.get("seconds") or {} for row in rows]
    times = ([site_seconds(s) for s in seconds], [float(s.get("training", NAN)) for s in seconds])
    memory = max((float(row["memory_mb"]) for row in every if row.get("memory_mb")), default=NAN)
    samples = float(rows[-1].get("samples", NAN)) if rows else NAN
    return [samples, float(len(rows)), *(size / MEGABYTE for size in ways), *map(mean, times), memory]


def _cost_rows(numbers: Mapping[str, Sequence[float]]) -> tuple[tuple[str, ...], ...]:
    return tuple((name, *(text(v) for text, v in zip(_COST_TEXTS, row, strict=True))) for name, row in numbers.items())


def _whole(value: float) -> str:
    return fixed(value, 0)


def _two_digits(value: float) -> str:
    return f"{value:,.2f}"


def _one_digit(value: float) -> str:
    return fixed(value, 1)


_COST_TEXTS = (_whole, _whole, _two_digits, _two_digits, _one_digit, _one_digit, _whole)
_SECONDS = 4  # column of the seconds per round, without the sites' names
_COST_SUMMARY: dict[str, Callable[[Sequence[float]], float]] = {
    "mean over sites": mean,
    "median site": middle,
    "highest": lambda values: max((v for v in values if math.isfinite(v)), default=NAN),
    "lowest": lambda values: min((v for v in values if math.isfinite(v)), default=NAN),
}


def privacy_table(run: Run) -> Table | None:
    """Tabulate the privacy settings and loss by site, or return None for a run without noise."""
    if not (settings := run.info.get("privacy")):
        return None
    rows = tuple(_privacy_row(run, site, settings) for site in run.sites)
    table = Table("Privacy by site", _PRIVACY_HEAD, rows, note=_PRIVACY_NOTE, labels=2)
    return folded(table, MOST) if are_many(run.sites) else table


def rejection_table(run: Run) -> Table:
    """Tabulate the rejected and missing updates; with many sites the first of them, and the others are folded."""
    table = Table("Rejected or missing updates", ("round", "site", "reason"), tuple(rejections(run)), labels=3)
    more = len(table.rows) - MOST
    folds = are_many(run.sites) and more > 0
    return replace(table, shown=MOST, rest=counted(more, "more update")) if folds else table


def _privacy_row(run: Run, site: str, settings: dict[str, Any]) -> tuple[str, ...]:
    path = site_folder(run.folder, site) / PRIVACY_RECORD
    own = read_json(path) if path.is_file() else {}
    last = run.aggregations.get(max(run.aggregations, default=0), {})
    sent, clipped = own.get("updates"), own.get("clipped")
    share = f"{100 * clipped / sent:.0f} %" if sent and clipped is not None else DASH
    values = [*map(settings.get, ("clip", "noise_multiplier", "delta")), own.get("epsilon", last.get("epsilon"))]
    values.append(own.get("epsilon_of_all_jobs"))
    *numbers, all_jobs = (f"{value:.4g}" if isinstance(value, int | float) else DASH for value in values)
    return (site, str(settings.get("unit", DASH)), *numbers, DASH if sent is None else str(sent), share, all_jobs)
