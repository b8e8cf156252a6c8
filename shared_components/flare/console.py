"""Console output while FLARE runs: in a simulator only our lines and progress bars, elsewhere the log.

FLARE's own records always go to `<workspace>/<party>/log.txt`. For each error of FLARE the simulator's console shows
one sentence with the file's path. Another console of the simulator (`-l full`) replaces this console.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TextIO

from nvflare.apis.fl_context import FLContext
from nvflare.fuel.utils.log_utils import LogMode, default_log_dict

from shared_components.common.atomic import write_json
from shared_components.common.counted import FEW, counted
from shared_components.common.progress import Step, listening
from shared_components.common.progress_display import PAUSE, Board
from shared_components.common.sanitise import printable

CONFIG = "log_config_sites.json"  # in the workspace: logging configuration of the sites' processes
LOG, RECORDS = "log.txt", "log.json"  # in a party's folder of the workspace
FAILED, STOPPED = "FAILED: ", "STOPPED: "  # begin the log's line with the reason of an early end
OURS = "shared_components"
SERVER = "server"
_MOST_SITES = 12  # maximum sites whose lines are all shown
_LONGEST = 400  # characters of an error of FLARE

logger = logging.getLogger(__name__)


class LogConsole:
    """The console of a deployment: lines go to FLARE's log, and sites have their own logs."""

    def __enter__(self) -> LogConsole:
        return self

    def look(self, *_: object) -> None:
        """Do nothing: the log needs no updates, and the sites' own logs show their progress."""

    show = end = close = __exit__ = look

    def say(self, text: str) -> None:
        """Log each line."""
        for line in printable(text).splitlines():
            logger.info("%s", line)


class SimulatorConsole:
    """A simulator's standard output; only the server's process writes to it.

    After ``pause`` seconds without output a line reports the sites' progress. With many sites, the lines of most sites
    are only in their logs. Warnings and errors of all sites are shown.
    """

    def __init__(
        self, workspace: Path, sites: Sequence[str], *, out: TextIO | None = None, pause: float = PAUSE
    ) -> None:
        self._board = Board(out, read=lambda: self._steps() or self._server, title=lambda: self._title, pause=pause)
        self._title = ""
        self._steps: Callable[[], Mapping[str, Step]] = dict
        self._server: dict[str, Step] = {}  # the server's own step, shown if no site works
        self._records = {site: workspace / site / RECORDS for site in sites}
        self._quiet = sites[FEW:] if len(sites) > _MOST_SITES else ()
        self._hidden = f"lines of {counted(len(self._quiet), 'more site')} are only in {workspace}/<site>/{LOG}"
        self._positions = dict.fromkeys(sites, 0)  # bytes of `_records` that were read
        self._handler = ConsoleHandler(self._board.say, workspace / SERVER / LOG)
        self._listening = ExitStack()
        self.say, self.close = self._board.say, self._board.close

    def __enter__(self) -> SimulatorConsole:
        root = logging.getLogger()
        for handler in [handler for handler in root.handlers if type(handler) is logging.StreamHandler]:
            root.removeHandler(handler)  # FLARE's own
        root.addHandler(self._handler)
        self._board.__enter__()  # it stays open until FLARE has ended; `close` ends it
        self._listening.enter_context(listening(self._hear))
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.close()

    def show(self, title: str, steps: Callable[[], Mapping[str, Step]]) -> None:
        """Show the sites' progress from now on."""
        self._title, self._steps = title, steps

    def look(self) -> None:
        """Print new records of the sites' processes: ours, and FLARE's errors."""
        for site, path in self._records.items():
            for record in self._new_records(site, path):
                level = logging.getLevelNamesMapping().get(record["levelname"], logging.INFO)
                line = console_line(record["fullName"], level, record["message"], site, path.with_name(LOG))
                if line and level < logging.WARNING and site in self._quiet:
                    line, self._hidden = self._hidden, ""
                if line:
                    self.say(line)

    def end(self) -> None:
        """Ignore FLARE's own errors from now on: the outcome is known."""
        self._handler.over = True
        self._title, self._steps, self._server = "", dict, {"": Step("FLARE ends its processes")}

    def _hear(self, step: Step) -> None:
        self._server = {SERVER: step}

    def _new_records(self, site: str, path: Path) -> Iterator[dict[str, str]]:
        if not path.is_file():
            return
        with path.open("rb") as file:
            if path.stat().st_size < self._positions[site]:  # FLARE has rotated the file
                self._positions[site] = 0
            file.seek(self._positions[site])
            for line in file:
                if not line.endswith(b"\n"):  # incomplete
                    return
                self._positions[site] += len(line)
                with suppress(ValueError):  # a line that a full disk has cut off
                    yield json.loads(line)


Console = LogConsole | SimulatorConsole


def is_default(fl_ctx: FLContext) -> bool:
    """Return whether the simulator's console is FLARE's default, not chosen on the command line."""
    return fl_ctx.get_engine().args.log_config in (None, LogMode.CONCISE)


def mute_sites(fl_ctx: FLContext, workspace: Path) -> None:
    """Make the sites' processes, which FLARE starts later, write only to their log files."""
    config = copy.deepcopy(default_log_dict)
    del config["handlers"]["consoleHandler"]
    config["loggers"]["root"]["handlers"].remove("consoleHandler")
    write_json(workspace / CONFIG, config)
    fl_ctx.get_engine().args.log_config = str(workspace / CONFIG)


class ConsoleHandler(logging.Handler):
    """The console's log handler in the server's process, which replaces FLARE's; ``log`` is the file of all records."""

    def __init__(self, say: Callable[[str], None], log: Path) -> None:
        super().__init__(logging.INFO)
        self._say, self._log = say, log
        self.over = False  # the outcome is known: hide errors while FLARE shuts down

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record of ours, or the first line of an error of FLARE."""
        name = getattr(record, "fullName", record.name)
        line = console_line(name, record.levelno, record.getMessage(), "the server", self._log)
        if line and (is_ours(name) or not self.over):
            self._say(line)


def is_ours(name: str) -> bool:
    """Return whether a logger belongs to this project."""
    return name == OURS or name.startswith(f"{OURS}.")


def console_line(name: str, level: int, message: str, party: str, log: Path) -> str:
    """Return the console's line for a record with this logger name and level; empty if the console hides the record.

    ``party`` is a site or ``the server``; ``log`` is the file with the complete record.
    """
    if is_ours(name):
        return message if level < logging.WARNING else f"{logging.getLevelName(level).lower()}: {message}"
    if level < logging.ERROR:
        return ""
    lines = message.strip().splitlines() or [""]
    return f"error at {party}, by {name.rpartition('.')[2]}: {lines[0][:_LONGEST]}; the rest is in {log}"
