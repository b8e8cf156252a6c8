"""`surgfl report RUN`: print a run's scores and write its HTML report."""

import argparse
from pathlib import Path
from typing import Any

from shared_components.commands import add_repeatable
from shared_components.reporting.records import load_evaluations, load_run
from shared_components.reporting.score_tables import demo_text

HELP = "print a run's scores and write its HTML report"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="state folder of the run, with run.json")
    add_repeatable(parser, "--evaluations", "[NAME=]DIR", "folder with <site>/metrics.json, shown beside this run")
    parser.add_argument("--out", type=Path, default=Path("ws/report/index.html"), help="page; default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Print the table and the page's path; RecordError if records are unreadable, or the page replaces other files."""
    from shared_components.reporting.report import build_report, refuse_to_replace

    compared = _evaluations(args.evaluations)
    records = load_run(args.folder, evaluations=list(compared.values())[-1] if compared else None, compared=compared)
    refuse_to_replace(records, args.out)
    page = build_report(records, args.out)
    print(f"{demo_text(records)}\n\nreport: {page.resolve()}")
    return 0


def _evaluations(given: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Read the folders of evaluations by their names; RecordError for a folder without evaluations."""
    evaluations: dict[str, dict[str, dict[str, Any]]] = {}
    for text in given:
        name, _, folder = text.rpartition("=")
        if len(given) > 1 and not name:
            raise ValueError(f"--evaluations {text}: each of several folders needs a name, such as local={folder}")
        if name in evaluations:
            raise ValueError(f"--evaluations {text}: {name!r} is given twice")
        evaluations[name] = load_evaluations(Path(folder))
    return evaluations
