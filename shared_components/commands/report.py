"""`surgfl report RUN`: print a run's scores and write its HTML report."""

import argparse
from pathlib import Path
from typing import Any

from shared_components.reporting.records import load_evaluations, load_run
from shared_components.reporting.report import build_report, refuse_to_replace
from shared_components.reporting.score_tables import demo_text

HELP = "print a run's scores and write its HTML report"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="state folder of the run, with run.json")
    parser.add_argument(
        "--evaluations",
        action="append",
        default=[],
        metavar="[NAME=]DIR",
        help="folder with <site>/metrics.json of the test split, shown beside this run; repeatable",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("ws/report/index.html"), help="output file; default: %(default)s"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table and the page's path; RecordError for unreadable records, or a page that replaces another file."""
    beside = _beside(args.evaluations)
    own = list(beside.values())[-1] if beside else None
    records = load_run(args.folder, evaluations=own, compared=beside)
    refuse_to_replace(records, args.out)
    page = build_report(records, args.out)
    print(f"{demo_text(records)}\n\nreport: {page.resolve()}")
    return 0


def _beside(given: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Read the folders of evaluations by their names; RecordError for a folder without any."""
    found = {}
    for text in given:
        name, _, folder = text.rpartition("=")
        if len(given) > 1 and not name:
            raise ValueError(f"--evaluations {text}: of several each needs a name, such as alone={folder}")
        if name in found:
            raise ValueError(f"--evaluations {text}: {name!r} is given twice")
        found[name] = load_evaluations(Path(folder))
    return found
