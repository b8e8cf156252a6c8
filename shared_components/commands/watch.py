"""`surgfl watch`: follow a run by its records, in a simulator or at a server."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shared_components.commands import add_place
from shared_components.common.progress_display import can_move
from shared_components.common.sanitise import printable
from shared_components.common.step_file import read_step
from shared_components.reporting.records import load_run
from shared_components.reporting.watch_view import Look, frame

if TYPE_CHECKING:
    from shared_components.federation.runs.run_cleanup import KeptRun

HELP = "follow a run: rounds, sites, scores; exit status 0: running or finished, 1: failed, 2: no run, 3: stopped"
CODES = {"running": 0, "finished": 0, "stopped": 3}  # as in `surgfl job watch`; 1 for other ends
_EVERY = 2.0  # seconds between two frames


def configure(parser: argparse.ArgumentParser) -> None:
    add_place(parser, "; follows the active run, else the newest")
    text = "show the run on a page, such as 127.0.0.1:8080, until Ctrl-C"
    parser.add_argument("--serve", metavar="HOST:PORT", help=text)


def run(args: argparse.Namespace) -> int:
    """Follow the run to its end; without a terminal print one frame. Return an exit code for the run's status."""
    from shared_components.federation.messages import FederationError
    from shared_components.federation.runs import run_cleanup

    try:
        runs = run_cleanup.find_runs(args.place)
    except FederationError as error:
        raise ValueError(str(error)) from error
    if not runs:
        raise ValueError(f"{args.place}: no run has begun there yet; start one, or name another folder")
    folder = ([kept for kept in runs if kept.status == "running"] or runs)[-1].folder
    if args.serve:
        from shared_components.commands import _watch_server

        name = f"{folder.parent.name}/{folder.name}"
        _watch_server.serve(name, args.serve, lambda: look_at(run_cleanup.read_run(folder)))
        return CODES.get(run_cleanup.read_run(folder).status, 1)
    if can_move(sys.stdout):
        return CODES.get(_follow(folder).status, 1)
    kept = run_cleanup.read_run(folder)
    print(_drawn(kept))
    return CODES.get(kept.status, 1)


def _follow(folder: Path) -> KeptRun:
    """Redraw until the run ends, or Ctrl-C; the last frame stays. Return the run's final state."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from shared_components.federation.runs import run_cleanup

    def look() -> KeptRun:
        kept = run_cleanup.read_run(folder)
        size = live.console.size
        text = Text(_drawn(kept, (size.width, size.height - 1)), no_wrap=True, overflow="ellipsis")
        text.highlight_regex(r"missing.*|failed.*|stopped.*", "red")
        text.highlight_regex("━+", "cyan")
        live.update(text, refresh=True)
        return kept

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        try:
            while look().status == "running":
                time.sleep(_EVERY)
        except KeyboardInterrupt:
            pass
        return look()  # its last records may be newer than the last frame


def _drawn(kept: KeptRun, size: tuple[int, int] | None = None) -> str:
    return printable(frame(look_at(kept), size))


def look_at(kept: KeptRun) -> Look:
    """Read the state of a run; a run that still enrols has no records, and a site of a deployment has only steps.

    RecordError, OSError: the records cannot be read.
    """
    folders = [path for path in sorted(kept.folder.glob("*/")) if path.name != "server"]
    steps = {path.name: str(step) for path in folders if (step := read_step(path))}
    records = load_run(kept.folder) if (kept.folder / "run.json").is_file() else None
    newest = (kept.folder / "server" / "rounds.jsonl") if records and records.aggregations else kept.folder
    since = time.time() - newest.stat().st_mtime
    return Look(kept.name, kept.status, records, steps, since)
