"""The costs of a run: bytes by role, seconds by stage, memory, missing updates, and what noise has spent of privacy.

A site's seconds of a round are one number everywhere, `site_seconds`: its own work, from the start of its process to
its reply, without waiting for the other sites and for the server. Only rounds that were trained count: the model sent
last is validated and not trained on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from shared_components.core.card import DASH, fixed
from shared_components.reporting.records import NAN, Run, mean, read_json, round_number, site_folder
from shared_components.reporting.tables import Table

MEGABYTE = 1_000_000
Stacks = dict[int, dict[str, float]]  # round -> part -> value
_SECONDS = (
    "A site's seconds of a round: its own work from the start to the reply; waiting for others and the server's "
    "step are not in them"
)
_COST_HEAD = (
    "site", "training frames", "rounds trained", "sent MB", "received MB", "s a round", "of it training s",
    "peak memory MB",
)  # fmt: skip
_WAITING, _AGGREGATING, _TRAINING = "waiting for others", "aggregating (server)", "training (server)"
PRIVACY_RECORD = "privacy.json"
_PRIVACY_HEAD = (
    "site", "unit", "clip", "noise", "delta", "epsilon", "updates sent", "of them clipped", "epsilon of all jobs",
)  # fmt: skip
_PRIVACY_NOTE = (
    "The noise's standard deviation is noise x clip on every number of an update. Epsilon and delta are for two data "
    "sets of a site that may differ in everything; an epsilon of a few says that what was sent tells little of them, "
    "one of hundreds promises next to nothing. What a site itself has counted is in its own folder, and a dash where "
    "that is elsewhere: how many updates were clipped depends on the data, so that no site sends it"
)


def bytes_by_round(run: Run, direction: str) -> Stacks:
    """Sum the bytes of all sites by round and role; direction is "up" (sent by the sites) or "down"."""
    stacks: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in (row for site in run.sites for row in run.rows[site].values()):
        for role, count in (row.get("bytes") or {}).get(direction, {}).items():
            stacks[row["round"]][role] += count
    return {r: dict(stack) for r, stack in sorted(stacks.items())}


def site_seconds(seconds: Mapping[str, float]) -> float:
    """Return the seconds of a site's own work from its record's `seconds`; NaN where it has none."""
    return sum(_stages(seconds).values()) if seconds else NAN


def trained(run: Run, site: str) -> dict[int, dict[str, Any]]:
    """Return a site's records of the rounds that it trained in."""
    return {r: row for r, row in sorted(run.rows[site].items()) if row.get("loss") or row.get("noisy")}


def seconds_by_round(run: Run) -> Stacks:
    """Average the seconds of the sites' own work by round and stage; the rest of the total is "other"."""
    return _means(run, _stages)


def idle_by_round(run: Run) -> Stacks:
    """Return the seconds of a round beside the sites' own work: their mean waiting, and the server's steps."""
    stacks = _means(run, lambda seconds: {_WAITING: seconds["waiting"]} if "waiting" in seconds else {})
    for r, line in run.aggregations.items():
        if r in stacks and "seconds" in line:
            stacks[r][_AGGREGATING] = line["seconds"]
        if r in stacks and "seconds_training" in line:
            stacks[r][_TRAINING] = line["seconds_training"]
    return {r: stack for r, stack in stacks.items() if stack}


def server_seconds(run: Run) -> dict[int, tuple[float, float, float]]:
    """Return, by round in which the server trained, what the sites waited for.

    These are the seconds until the last site had answered, those of the aggregation, and those of the training at
    the server; the sites wait for the last two together.
    """
    return {
        r: (float(line.get("seconds_wall", NAN)), float(line.get("seconds", NAN)), float(line["seconds_training"]))
        for r, line in sorted(run.aggregations.items())
        if "seconds_training" in line
    }


def server_table(run: Run) -> Table | None:
    """Tabulate by round how long the sites waited for the server; None where it trains on nothing."""
    found = server_seconds(run)
    if not found:
        return None
    rows = []
    for r, (sites, averaging, training) in found.items():
        waited = averaging + training
        share = 100 * waited / (sites + waited) if sites + waited else NAN
        seconds = (fixed(value, 1) for value in (sites, averaging, training, waited))
        rows.append((str(round_number(r)), *seconds, fixed(share, 0)))
    head = ("round", "sites' work s", "aggregating s", "training s", "waited for the server s", "share of the round %")
    note = (
        "The server trains after every aggregation, and all sites wait until it has. Their work is from the sending "
        "of a round to the last answer"
    )
    return Table("Waiting for the server", head, tuple(rows), note=note)


def round_seconds(run: Run) -> float:
    """Return the mean of `site_seconds` over all sites and trained rounds."""
    return mean([site_seconds(row.get("seconds") or {}) for site in run.sites for row in trained(run, site).values()])


def round_bytes(run: Run, direction: str) -> float:
    """Return the mean bytes of one site in a trained round."""
    rows = [row for site in run.sites for row in trained(run, site).values() if row.get("bytes")]
    return mean([float(sum(row["bytes"].get(direction, {}).values())) for row in rows])


def parts(*stacks: Stacks) -> list[str]:
    """List the parts that occur in any round, in the order the records name them."""
    return list(dict.fromkeys(part for stack in stacks for column in stack.values() for part in column))


def cost_table(run: Run) -> Table:
    """Tabulate data, bytes, time and memory by site."""
    rows = tuple(_cost_row(run, site) for site in run.sites)
    note = f"1 MB = 1,000,000 bytes, summed over the run; seconds are means. {_SECONDS}"
    return Table("Cost by site", _COST_HEAD, rows, note=note)


def traffic_table(run: Run) -> Table:
    """Tabulate exact bytes by role, over all sites and rounds."""
    up, down = bytes_by_round(run, "up"), bytes_by_round(run, "down")
    rows = [
        (role, *(f"{round(sum(column.get(role, 0) for column in stacks.values())):,}" for stacks in (up, down)))
        for role in parts(up, down)
    ]
    return Table("Bytes by role, all sites and rounds", ("role", "sent by sites", "sent to sites"), tuple(rows))


def rejections(run: Run) -> list[tuple[str, str, str]]:
    """List every update that was refused or did not come, as round, site and reason."""
    return [
        (str(round_number(r)), str(entry.get("site", DASH)), str(entry.get("reason", DASH)))
        for r, line in sorted(run.aggregations.items())
        for entry in line.get("rejected") or []
    ]


def _means(run: Run, pick: Callable[[Mapping[str, float]], dict[str, float]]) -> Stacks:
    """Average what is picked of every site's seconds, by round."""
    found: defaultdict[int, list[dict[str, float]]] = defaultdict(list)
    for site in run.sites:
        for r, row in trained(run, site).items():
            if row.get("seconds"):
                found[r].append(pick(row["seconds"]))
    return {
        r: {part: sum(row.get(part, 0.0) for row in rows) / len(rows) for part in parts(dict(enumerate(rows)))}
        for r, rows in sorted(found.items())
    }


def _stages(seconds: Mapping[str, float]) -> dict[str, float]:
    stages = {name: value for name, value in seconds.items() if name not in ("total", "waiting")}
    other = seconds.get("total", 0.0) - sum(stages.values())
    return stages | {"other": other} if other > 0.05 else stages


def _cost_row(run: Run, site: str) -> tuple[str, ...]:
    every = [row for _, row in sorted(run.rows[site].items())]
    rows = list(trained(run, site).values())
    sent, received = (
        sum(sum((row.get("bytes") or {}).get(way, {}).values()) for row in every) for way in ("up", "down")
    )
    seconds = [row.get("seconds") or {} for row in rows]
    memory = max((float(row["memory_mb"]) for row in every if row.get("memory_mb")), default=NAN)
    return (
        site,
        str(rows[-1].get("samples", DASH)) if rows else DASH,
        str(len(rows)),
        f"{sent / MEGABYTE:,.2f}",
        f"{received / MEGABYTE:,.2f}",
        fixed(mean([site_seconds(s) for s in seconds]), 1),
        fixed(mean([float(s.get("training", "nan")) for s in seconds]), 1),
        fixed(memory, 0),
    )


def privacy_table(run: Run) -> Table | None:
    """Tabulate the privacy of a run by site; None where it has no noise."""
    said = run.info.get("privacy")
    if not said:
        return None
    rows = tuple(_privacy_row(run, site, said) for site in run.sites)
    return Table("Privacy by site", _PRIVACY_HEAD, rows, note=_PRIVACY_NOTE, labels=2)


def _privacy_row(run: Run, site: str, said: dict[str, Any]) -> tuple[str, ...]:
    path = site_folder(run.folder, site) / PRIVACY_RECORD
    own = read_json(path) if path.is_file() else {}
    last = run.aggregations.get(max(run.aggregations, default=0), {})
    sent, clipped = own.get("updates"), own.get("clipped")
    share = f"{100 * clipped / sent:.0f} %" if sent and clipped is not None else DASH
    return (
        site,
        str(said.get("unit", DASH)),
        *(_number(said.get(key)) for key in ("clip", "noise_multiplier", "delta")),
        _number(own.get("epsilon", last.get("epsilon"))),
        str(sent) if sent is not None else DASH,
        share,
        _number(own.get("epsilon_of_all_jobs")),
    )


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else DASH
