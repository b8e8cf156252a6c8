"""Draw the page of `surgfl watch --serve`: the state of a run in the report's look."""

import base64
import hashlib
from dataclasses import replace
from functools import cache
from typing import Any

from shared_components.common.counted import counted
from shared_components.core.card import DASH, fixed
from shared_components.reporting.costs import rejections
from shared_components.reporting.figures import followed, loss_panels, score_panels
from shared_components.reporting.many_sites import MOST, folded
from shared_components.reporting.records import EARLY, Group, Run, mean, round_number, score
from shared_components.reporting.report import TEMPLATES
from shared_components.reporting.tables import Table
from shared_components.reporting.watch_view import Look, missing_updates, sites_table, steps_table, time_left

_SHOWN = 10  # newest rounds in the table; the others are folded
_EXTRA = "progress { width: 100%; height: 12px; accent-color: var(--s1); }\n[hidden] { display: none; }"


def watch_page(look: Look) -> str:
    """Return the page of a run's present state; every name is escaped."""
    return TEMPLATES.get_template("watch.html.j2").render(**_contents(look), style=_style(), script=_script())


def unreadable_page(name: str) -> str:
    """Return the page if the records cannot be read; it names no path."""
    reason = "Its records cannot be read now. The terminal of surgfl watch shows the reason."
    content: dict[str, Any] = {
        "heading": name,
        "status": "running",
        "colour": "failed",
        "sentence": reason,
        "title": name,
    }
    empty = {"sites": (), "missing": (), "by_round": (), "panels": (), "rounds": 0, "done": 0}
    return TEMPLATES.get_template("watch.html.j2").render(**content, **empty, style=_style(), script=_script())


@cache
def content_policy() -> str:
    """Return the page's Content-Security-Policy: only its own style and script, and requests to its own server."""
    style, script = (base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (_style(), _script()))
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@cache
def _style() -> str:
    return f"{TEMPLATES.get_template('style.css.j2').render()}\n{_EXTRA}"


@cache
def _script() -> str:
    return TEMPLATES.get_template("watch.js.j2").render()


def _contents(look: Look) -> dict[str, Any]:
    run, steps = look.run, look.steps if look.status == "running" else {}
    colour = look.status if look.status in ("failed", "stopped") else ""
    content: dict[str, Any] = {
        "heading": look.name,
        "title": f"{look.status}: {look.name}",
        "status": look.status,
        "colour": colour,
    }
    if run is None:
        content |= {"sentence": "No round has ended yet.", "rounds": 0, "done": 0, "missing": (), "by_round": ()}
        return content | {"sites": [steps_table(look)], "panels": ()}
    done, tables = len(run.aggregations), [sites_table(run, group, steps, len(group.sites)) for group in run.groups]
    sentence = f"{done} of {counted(run.rounds, 'round')} done"
    if look.status == "running":
        sentence += time_left(run, look.since).replace("\n", "; ")
    reasons = [str(run.info[key]) for key in EARLY if run.info.get(key)]
    panels = [panel for group in run.groups if followed(run, group) for panel in score_panels(run, group)[:1]]
    return content | {
        "heading": f"{run.about['label']}, {look.name}",
        "sentence": ". ".join([sentence, *reasons]) + ".",
        "rounds": run.rounds,
        "done": done,
        "sites": [folded(table, MOST) if len(table.rows) > MOST else table for table in tables],
        "missing": missing_updates(run),
        "by_round": [rounds_table(run)] if run.aggregations else [],
        "panels": [*panels, *loss_panels(run)],
    }


def rounds_table(run: Run) -> Table:
    """Tabulate the rounds, the newest first: updates, missing updates, seconds, and each task's mean score."""
    lost = [number for number, _, _ in rejections(run)]
    head = ["round", "updates", "missing", "seconds"]
    head += [f"mean {group.first.plain_heading}" for group in run.groups]
    rows = []
    for r, line in sorted(run.aggregations.items(), reverse=True):
        number = str(round_number(r))
        answers, missing = sum(r in run.rows[site] for site in run.sites), lost.count(number)
        rejected = sum(entry.get("site") in run.rows and r in run.rows[entry["site"]] for entry in line["rejected"])
        seconds = line.get("seconds_wall")
        scores = (_mean_score(run, group, r) for group in run.groups)
        text = DASH if seconds is None else fixed(seconds + line.get("seconds_training", 0.0), 1)
        rows.append((number, str(answers - rejected), str(missing), text, *scores))
    note = "Missing: rejected, late and lost updates. Scores: the model received in the round, on the validation split"
    table = Table("Newest rounds first", tuple(head), tuple(rows), note=note)
    more = len(rows) - _SHOWN
    return replace(table, shown=_SHOWN, rest=counted(more, "earlier round")) if more > 0 else table


def _mean_score(run: Run, group: Group, r: int) -> str:
    rows = [run.rows[site].get(r, {}).get("metrics") or {} for site in group.sites]
    return group.first.plain_text(mean([score(row, group.first.name) for row in rows]))
