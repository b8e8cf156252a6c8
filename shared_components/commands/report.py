"""`surgfl report RUN`: print a run's table and write its HTML report."""

import argparse
import sys
from pathlib import Path

from shared_components.reporting.records import RecordError, load_evaluations
from shared_components.reporting.report import build_report
from shared_components.reporting.tables import demo_text

HELP = "print a run's table and write its HTML report"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="state directory of the run (holds run.json)")
    parser.add_argument(
        "--evaluations", type=Path, metavar="DIR", help="folder with <site>/metrics.json of the test split"
    )
    parser.add_argument("--out", type=Path, default=Path("ws/report/index.html"), help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Print the table and the page's path; 1 when the records cannot be read."""
    try:
        evaluations = load_evaluations(args.evaluations) if args.evaluations else None
        table = demo_text(args.run, evaluations=evaluations)
        page = build_report(args.run, args.out, evaluations=evaluations)
    except RecordError as error:
        print(f"surgfl report: {error}", file=sys.stderr)
        return 1
    print(f"{table}\n\nreport: {page.resolve()}")
    return 0
