"""Write the report of a run: one self-contained HTML file without scripts."""

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from shared_components.common.atomic import write_text
from shared_components.common.counted import counted, first_few
from shared_components.core.initial_weights import describe_start
from shared_components.reporting import figures, score_tables
from shared_components.reporting.costs import cost_table, privacy_table, rejection_table, server_table, traffic_table
from shared_components.reporting.evaluation_summary import evaluation_of
from shared_components.reporting.galleries import chosen_frames, galleries
from shared_components.reporting.mixing import verdicts
from shared_components.reporting.records import Group, RecordError, Run, load_run
from shared_components.reporting.summary import on_validation, score_tiles, sentences, state, tiles
from shared_components.reporting.tables import Table

_HERE = FileSystemLoader(Path(__file__).parent)
TEMPLATES = Environment(loader=_HERE, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
_SECTIONS = {
    "result": "Result", "pictures": "Predictions", "summary": "The run", "validation": "Validation",
    "mixing": "Mixing weights", "costs": "Cost", "privacy": "Privacy", "refused": "Missing updates",
    "losses": "Training", "settings": "Settings",
}  # fmt: skip
_FACTS = ("job", "sites", "start", "started", "commit", "seed", "hardware")
_MARK = "<!-- surgfl: "


def build_report(run: Path | Run, out: Path, *, evaluations: dict[str, dict[str, Any]] | None = None) -> Path:
    """Write the report of a run, which may be unfinished, and return its file; an old report is replaced atomically.

    `run` is a state directory or its records; `evaluations` are the bundles' metrics.json by site.

    RecordError: run.json is missing or contains no tasks, or a record cannot be read.
    """
    records = run if isinstance(run, Run) else load_run(run, evaluations=evaluations)
    page = TEMPLATES.get_template("report.html.j2").render(**contents(records))
    write_text(out, f"{page.rstrip()}\n{_mark(records)}\n")
    return out


def refuse_to_replace(run: Run, out: Path) -> None:
    """Raise RecordError if a file exists that is not an earlier report of the same run."""
    last = out.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2] if out.is_file() else ""
    if out.exists() and last != _mark(run):
        what = last.removeprefix(_MARK).removesuffix(" -->") if last.startswith(_MARK) else "not a report of surgfl"
        raise RecordError(f"{out}: already exists and is {what}; give another --out, or move the file")


def _mark(run: Run) -> str:
    """Return the last line of a page, which names the run."""
    folder = run.folder.resolve()
    name = f"{folder.parent.name}/{folder.name}".replace("--", "-")  # two hyphens would end the comment
    return f"{_MARK}the report of {name} -->"


def contents(run: Run) -> dict[str, Any]:
    """Return the values of all variables of the template."""
    groups = {group: _part(run, group) for group in run.groups}
    settings = {key: value for key, value in run.info.items() if key not in ("cards", "metrics", "said")}
    rows = (*(("task", group.title) for group in groups), *_settings(settings))
    content = {
        "title": f"{run.about['label']}: {counted(len(run.sites), 'site')}, {counted(run.rounds, 'round')}",
        "idea": run.about["idea"], "paper": run.about["paper"], "facts": _facts(run), "state": state(run),
        "parts": list(groups.values()), "chosen_frames": chosen_frames(run), "tiles": tiles(run),
        "sentences": sentences(run, [group for group, part in groups.items() if part["tested"]]),
        "verdicts": verdicts(run),
        "mixing_panels": figures.mixing_panels(run), "mixing_maps": figures.mixing_maps(run),
        "costs": cost_table(run), "cost_panels": [*figures.time_panels(run), *figures.traffic_panels(run)],
        "traffic": traffic_table(run), "privacy": privacy_table(run), "server": server_table(run),
        "refused": rejection_table(run),
        "loss_panels": figures.loss_panels(run),
        "settings": Table("Settings", ("setting", "value"), rows, labels=2),
    }  # fmt: skip
    return {**content, "links": _links(content)}


def _links(content: dict[str, Any]) -> list[tuple[str, str]]:
    """List the sections of the page as (anchor, name), without empty sections."""
    optional = {
        "mixing": content["verdicts"] or content["mixing_panels"] or content["mixing_maps"],
        "privacy": content["privacy"], "refused": content["refused"].rows, "losses": content["loss_panels"],
    }  # fmt: skip
    return [(anchor, name) for anchor, name in _SECTIONS.items() if optional.get(anchor, True)]


def _part(run: Run, group: Group) -> dict[str, Any]:
    """Return the page's content for a task; a run's only task has no heading."""
    last = {site: run.last_metrics(site) for site in group.sites}
    evaluation, panels = evaluation_of(run, group), figures.score_panels(run, group)
    evaluated = run.evaluations_of(group)
    texts = (" ".join(on_validation(run, group)), "", _UNTESTED, panels[0])
    if evaluation:
        texts = (evaluation.sentence(), evaluation.differences(), evaluation.note(), evaluation.panel())
    every = evaluation.all_sites() if evaluation else None
    by = "By site and class" if group.outputs else "By site"
    title = score_tables.evaluation_title(run)
    return {
        "title": group.title if len(run.groups) > 1 else "",
        "tested": bool(evaluation),
        "answer": dict(zip(("sentence", "more", "note", "panel"), texts, strict=True)),
        "every_site": [every] if every else [],
        "tiles": score_tiles(run, group),
        **galleries(run, group),
        "directions": score_tables.directions(group.metrics),
        "progress": score_tables.progress_table(run, group),
        "panels": panels if evaluation else panels[1:],
        "unfinished": _unfinished(run, group),
        "validation": score_tables.scores_table(last, group, title=f"{by}, on validation"),
        "test": score_tables.scores_table(evaluated, group, title=title) if evaluated else None,
        "comparison": score_tables.comparison_table(run, group) if len(run.compared) > 1 else None,
    }


_UNTESTED = (
    "These scores are on the validation split, which was also used to select the best round. There are no scores on "
    "held-out test frames, because no evaluation was given to this report."
)


def _unfinished(run: Run, group: Group) -> str:
    """Return a sentence on sites without final scores, and on metrics that are measured only at the end."""
    if not (waiting := [site for site in group.sites if site not in run.finals]):
        return ""
    followed = figures.followed(run, group)
    later = [metric.label for metric in group.metrics if metric not in followed]
    measured = f" {', '.join(later)}: measured at the end of the run." if followed and later else ""
    return f"No final scores yet from {first_few(waiting)}; their rows show the last reported round.{measured}"


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return the facts that identify the run; more than six sites are only counted in the title."""
    facts = {name: run.info.get(name) for name in _FACTS} | {"sites": list(run.sites)}
    if isinstance(facts["job"], dict):
        facts["job"] = facts["job"].get("name")
    if isinstance(facts["start"], dict):
        facts["start"] = describe_start(facts["start"])
    if isinstance(facts["started"], str):
        facts["started"] = facts["started"].replace("T", " ").replace("+00:00", " UTC")
    few = len(run.sites) <= 6
    return [(n, _plain(value)) for n, value in facts.items() if value not in (None, "") and (few or n != "sites")]


def _settings(value: Any, name: str = "") -> tuple[tuple[str, str], ...]:
    """Flatten a record to pairs of dotted name and value."""
    if not isinstance(value, dict):
        return ((name, _plain(value)),)
    return tuple(row for key, v in value.items() for row in _settings(v, f"{name}.{key}" if name else key))


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value)
