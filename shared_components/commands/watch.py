"""`surgfl watch`: follow a run by the records that it writes, in a simulator and where a production's server runs."""

import argparse
import sys
import time
from pathlib import Path

from shared_components.commands import add_place
from shared_components.common.progress_display import can_move
from shared_components.common.sanitise import printable
from shared_components.common.step_file import read_step
from shared_components.federation.messages import FederationError
from shared_components.federation.runs import run_cleanup
from shared_components.federation.runs.run_cleanup import KeptRun
from shared_components.reporting.records import load_run
from shared_components.reporting.watch_view import frame

HELP = (
    "follow a run: rounds, sites, scores, time left; exit status 0: running or finished, 1: failed, 2: no run, "
    "3: stopped"
)
CODES = {"running": 0, "finished": 0, "stopped": 3}  # as of `surgfl job watch`; 1 for any other end
_EVERY = 2.0  # seconds between two looks


def configure(parser: argparse.ArgumentParser) -> None:
    add_place(parser, "; follows the active run, else the newest")


def run(args: argparse.Namespace) -> int:
    """Follow the run to its end; without a terminal print one frame. Return an exit code for the run's status."""
    try:
        found = run_cleanup.find_runs(args.place)
    except FederationError as error:
        raise ValueError(str(error)) from error
    if not found:
        raise ValueError(f"{args.place}: no run has begun there yet; start one, or name another folder")
    chosen = ([one for one in found if one.status == "running"] or found)[-1]
    if not can_move(sys.stdout):
        now = run_cleanup.read_run(chosen.folder)
        print(_drawn(now))
    else:
        now = _followed(chosen.folder)
    return CODES.get(now.status, 1)


def _followed(folder: Path) -> KeptRun:
    """Redraw until the run has ended, or Ctrl-C; the last frame stays. Return the run as it was last."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def look() -> KeptRun:
        now = run_cleanup.read_run(folder)
        text = Text(_drawn(now), no_wrap=True, overflow="ellipsis")
        text.highlight_regex(r"missing.*|failed.*|stopped.*", "red")
        text.highlight_regex("━+", "cyan")
        live.update(text, refresh=True)
        return now

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        try:
            while look().status == "running":
                time.sleep(_EVERY)
        except KeyboardInterrupt:
            pass
        return look()  # its last records may have come after they were read, and before its lock was asked for


def _drawn(now: KeptRun) -> str:
    """Draw one frame; a run that still enrols has no records, and at a site of a deployment there are steps alone."""
    folders = [path for path in sorted(now.folder.glob("*/")) if path.name != "server"]
    steps = {path.name: str(step) for path in folders if (step := read_step(path))}
    records = load_run(now.folder) if (now.folder / "run.json").is_file() else None
    when = (now.folder / "server" / "rounds.jsonl") if records and records.aggregations else now.folder
    text = frame(now.name, now.status, records, steps, since=time.time() - when.stat().st_mtime)
    return printable(text)
