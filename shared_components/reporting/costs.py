"""What a run cost: bytes by role, seconds by stage, memory, and the updates that were refused or did not come."""

from collections import defaultdict
from typing import Any

from shared_components.reporting.records import Run, mean
from shared_components.reporting.tables import DASH, Table, number

MEGABYTE = 1_000_000
Stacks = dict[int, dict[str, float]]  # round -> part -> value


def bytes_by_round(run: Run, direction: str) -> Stacks:
    """Sum the bytes of all sites by round and role; direction is "up" (sent by the sites) or "down"."""
    stacks: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in _rows(run):
        for role, count in (row.get("bytes") or {}).get(direction, {}).items():
            stacks[row["round"]][role] += count
    return {r: dict(stack) for r, stack in sorted(stacks.items())}


def seconds_by_round(run: Run) -> Stacks:
    """Average the seconds of the sites by round and stage; what `total` has beyond the stages is "other"."""
    stacks: Stacks = {}
    for r in sorted({row["round"] for row in _rows(run) if row.get("seconds")}):
        stages = [_stages(row["seconds"]) for row in _rows(run) if row["round"] == r and row.get("seconds")]
        names = dict.fromkeys(name for stage in stages for name in stage)
        stacks[r] = {name: sum(stage.get(name, 0.0) for stage in stages) / len(stages) for name in names}
        if "seconds" in run.aggregations.get(r, {}):
            stacks[r]["aggregating (server)"] = run.aggregations[r]["seconds"]
    return stacks


def parts(*stacks: Stacks) -> list[str]:
    """List the parts that occur in any round, in the order the records name them."""
    return list(dict.fromkeys(part for stack in stacks for column in stack.values() for part in column))


def cost_table(run: Run) -> Table:
    """Tabulate data, bytes, time and memory by site."""
    head = (
        "site",
        "training frames",
        "rounds trained",
        "sent MB",
        "received MB",
        "s a round",
        "of it training s",
        "peak memory MB",
    )
    rows = tuple(_cost_row(run, site) for site in run.sites)
    return Table(
        "Cost by site", head, rows, note="1 MB = 1,000,000 bytes, summed over the run; seconds are means"
    )


def traffic_table(run: Run) -> Table:
    """Tabulate exact bytes by role, over all sites and rounds."""
    up, down = bytes_by_round(run, "up"), bytes_by_round(run, "down")
    rows = [(role, f"{_total(up, role):,}", f"{_total(down, role):,}") for role in parts(up, down)]
    return Table(
        "Bytes by role, all sites and rounds", ("role", "sent by sites", "sent to sites"), tuple(rows)
    )


def rejections(run: Run) -> list[tuple[str, str, str]]:
    """List every update that was refused or did not come, as round, site and reason."""
    return [
        (str(r), str(entry.get("site", DASH)), str(entry.get("reason", DASH)))
        for r, line in sorted(run.aggregations.items())
        for entry in line.get("rejected") or []
    ]


def _rows(run: Run) -> list[dict[str, Any]]:
    return [row for site in run.sites for row in run.rows[site].values()]


def _stages(seconds: dict[str, float]) -> dict[str, float]:
    stages = {name: value for name, value in seconds.items() if name != "total"}
    other = seconds.get("total", 0.0) - sum(stages.values())
    return stages | {"other": other} if other > 0.05 else stages


def _total(stacks: Stacks, role: str) -> int:
    return round(sum(column.get(role, 0) for column in stacks.values()))


def _cost_row(run: Run, site: str) -> tuple[str, ...]:
    every = [row for _, row in sorted(run.rows[site].items())]
    rows = [row for row in every if row.get("loss")]  # the last delivery is not trained on
    sent, received = (
        sum(sum((row.get("bytes") or {}).get(way, {}).values()) for row in every) for way in ("up", "down")
    )
    seconds = [row.get("seconds") or {} for row in rows]
    totals = [float(s.get("total", sum(s.values()))) for s in seconds]
    memory = max((float(row["memory_mb"]) for row in every if row.get("memory_mb")), default=float("nan"))
    return (
        site,
        str(rows[-1].get("samples", DASH)) if rows else DASH,
        str(len(rows)),
        f"{sent / MEGABYTE:,.2f}",
        f"{received / MEGABYTE:,.2f}",
        number(mean(totals), 1),
        number(mean([float(s.get("training", "nan")) for s in seconds]), 1),
        number(memory, 0),
    )
