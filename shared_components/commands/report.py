"""`surgfl report RUN`: print a run's table and write its HTML report."""

import argparse
from pathlib import Path

from shared_components.reporting.records import load_evaluations
from shared_components.reporting.report import build_report
from shared_components.reporting.tables import demo_text

HELP = "print a run's table and write its HTML report"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "folder", type=Path, metavar="RUN", help="state directory of the run (holds run.json)"
    )
    parser.add_argument(
        "--evaluations", type=Path, metavar="DIR", help="folder with <site>/metrics.json of the test split"
    )
    parser.add_argument("--out", type=Path, default=Path("ws/report/index.html"), help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Print the table and the page's path.

    Raises:
        RecordError: when the records cannot be read.
    """
    evaluations = load_evaluations(args.evaluations) if args.evaluations else None
    table = demo_text(args.folder, evaluations=evaluations)
    page = build_report(args.folder, args.out, evaluations=evaluations)
    print(f"{table}\n\nreport: {page.resolve()}")
    return 0
