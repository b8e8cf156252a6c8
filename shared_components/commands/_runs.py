"""Do the work of `surgfl runs`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shared_components.common.counted import counted
from shared_components.federation.messages import FederationError
from shared_components.federation.runs import run_cleanup
from shared_components.federation.runs.run_check import check_run
from shared_components.federation.runs.run_cleanup import KeptRun
from shared_components.reporting.tables import Table, as_text


def run(args: argparse.Namespace) -> int:
    """List, check or remove runs; 1 if a check fails or the user answers no. After a ValueError nothing was removed."""
    try:
        return _run(args)
    except FederationError as error:
        raise ValueError(str(error)) from error


def _run(args: argparse.Namespace) -> int:
    if args.keep is not None and args.keep < 0:
        raise ValueError(f"--keep is {args.keep}; give a whole number, at least 0")
    runs = run_cleanup.find_runs(args.place, also_foreign=args.check)
    if args.check:
        return _check(runs, args.place)
    if args.remove is None and args.keep is None:
        if args.models or args.yes:
            raise ValueError("--models and --yes go with --remove RUN or --keep N; name what is removed")
        print(as_text(table(runs)) if runs else f"{args.place}: no runs")
        return 0
    if args.remove is None:
        chosen = run_cleanup.older_runs(runs, args.keep)
    else:
        chosen = run_cleanup.chosen_runs(runs, args.remove)
    if running := [kept.name for kept in chosen if kept.status == "running"]:
        raise ValueError(f"{running[0]} is running; wait for its end, nothing was removed")
    if not chosen:
        print("nothing to remove")
        return 0
    print(as_text(table(chosen)))
    if not (args.yes or _agreed(len(chosen), "the models of " if args.models else "")):
        print("nothing was removed")
        return 1
    print(f"removed; {megabytes(sum(run_cleanup.remove(kept, models_only=args.models) for kept in chosen))} freed")
    return 0


def _check(runs: Sequence[KeptRun], place: Path) -> int:
    """Print after which rounds each party can go on, and every problem; return 1 if there is a problem or no run."""
    checked = [(run, party) for run in runs for party in check_run(run.folder, finished=run.status == "finished")]
    if not checked:
        print(f"{place}: no runs")
        return 1
    rows = [(run.name, party.name, ", ".join(map(str, party.rounds)) or "none") for run, party in checked]
    print(as_text(Table(counted(len(runs), "run"), ("run", "party", "can resume after rounds"), tuple(rows), labels=3)))
    problems = [problem for _, party in checked for problem in party.problems]
    for problem in problems:
        print(f"{problem}; copy it again")
    return 1 if problems else 0


def _agreed(count: int, what: str) -> bool:
    if not sys.stdin.isatty():
        raise ValueError("nobody can be asked here; add --yes to remove them, nothing was removed")
    question = f"Remove {what}{'this run' if count == 1 else f'these {count} runs'}? [y/N] "
    return input(question).strip().lower() in ("y", "yes")


def table(runs: Sequence[KeptRun]) -> Table:
    rows = []
    for run in runs:
        status = run.status + (", latest" if run.latest else "")
        rounds = f"{run.done}/{run.rounds}" if run.rounds else ""
        rows.append((run.name, run.method, status, run.when, rounds, str(run.sites or ""), megabytes(run.size)))
    title = f"{counted(len(runs), 'run')}, {megabytes(sum(run.size for run in runs))}"
    return Table(title, ("run", "method", "status", "begun (UTC)", "rounds", "sites", "size"), tuple(rows), labels=4)


def megabytes(size: int) -> str:
    """Format bytes as megabytes, or as gigabytes from 1 GB on."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
