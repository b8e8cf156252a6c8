"""The console output while FLARE runs: in a simulator our lines and progress bars alone, elsewhere the log.

FLARE's own records always go to `<workspace>/<party>/log.txt`; for each of its errors the console shows one sentence
with that file's path. Another console of the simulator (`-l full`) replaces this one.
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
from shared_components.common.progress import Step, listening
from shared_components.common.progress_display import PAUSE, Board
from shared_components.common.sanitise import printable

CONFIG = "log_config_sites.json"  # in the workspace: the logging configuration of its sites' processes
LOG, RECORDS = "log.txt", "log.json"  # of a party, in its folder of the workspace
FAILED, STOPPED = "FAILED: ", "STOPPED: "  # begin the log's line with the reason of an early end
OURS = "shared_components"
SERVER = "server"
_LONGEST = 400  # characters of one of FLARE's errors that are shown

logger = logging.getLogger(__name__)


class LogConsole:
    """The console of a deployment: lines go to FLARE's log; the sites have logs of their own."""

    def __enter__(self) -> LogConsole:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to release."""

    def say(self, text: str) -> None:
        """Log each line."""
        for line in printable(text).splitlines():
            logger.info("%s", line)

    def show(self, title: str, steps: Callable[[], Mapping[str, Step]]) -> None:
        """Do nothing: the sites' own logs show their progress."""

    def look(self) -> None:
        """Do nothing: the sites have consoles of their own."""

    def end(self) -> None:
        """Do nothing: the log keeps everything."""

    def close(self) -> None:
        """Do nothing: there are no bars."""


class SimulatorConsole:
    """A simulator's standard output, to which the server's process alone writes.

    Args:
        workspace: The simulator's.
        sites: Their names.
        out: Stream of the lines and progress bars.
        pause: Seconds without output before a line reports the sites' progress.
    """

    def __init__(
        self, workspace: Path, sites: Sequence[str], *, out: TextIO | None = None, pause: float = PAUSE
    ) -> None:
        self._board = Board(out, read=self._read, title=lambda: self._title, pause=pause)
        self._title = ""
        self._steps: Callable[[], Mapping[str, Step]] = dict
        self._server: dict[str, Step] = {}  # the server's own step
        self._logs = SiteLogs(workspace, sites)
        self._handler = OursOnly(self._board.say, workspace / SERVER / LOG)
        self._listening = ExitStack()
        self.say, self.close = self._board.say, self._board.close

    def __enter__(self) -> SimulatorConsole:
        self._handler.install()
        self._board.__enter__()  # it stays open until FLARE has ended; `close` ends it
        self._listening.enter_context(listening(self._hear))
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.close()

    def show(self, title: str, steps: Callable[[], Mapping[str, Step]]) -> None:
        """Show the sites' progress from now on."""
        self._title, self._steps = title, steps

    def look(self) -> None:
        """Write what the sites' processes have logged since the last call."""
        for line in self._logs.news():
            self.say(line)

    def end(self) -> None:
        """Ignore FLARE's own errors from now on: the outcome is known."""
        self._handler.over = True
        self._title, self._steps, self._server = "", dict, {"": Step("FLARE ends its processes")}

    def _hear(self, step: Step) -> None:
        self._server = {SERVER: step}

    def _read(self) -> Mapping[str, Step]:
        """Return the steps of the sites at work, or the server's own step if there are none."""
        return self._steps() or self._server


Console = LogConsole | SimulatorConsole


def wanted(fl_ctx: FLContext) -> bool:
    """Return whether the simulator's console is FLARE's default, not one that the command line chooses."""
    return fl_ctx.get_engine().args.log_config in (None, LogMode.CONCISE)


def hush_sites(fl_ctx: FLContext, workspace: Path) -> None:
    """Let the sites' processes, which FLARE starts later, write to their log files alone."""
    config = copy.deepcopy(default_log_dict)
    del config["handlers"]["consoleHandler"]
    config["loggers"]["root"]["handlers"].remove("consoleHandler")
    write_json(workspace / CONFIG, config)
    fl_ctx.get_engine().args.log_config = str(workspace / CONFIG)


class OursOnly(logging.Handler):
    """The console's log handler in the server's process, in place of FLARE's.

    Args:
        say: Writes a line.
        log: File of all records.
    """

    def __init__(self, say: Callable[[str], None], log: Path) -> None:
        super().__init__(logging.INFO)
        self._say, self._log = say, log
        self.over = False  # the outcome is known: errors while FLARE shuts down are not shown

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record of ours, or the first line of one of FLARE's errors."""
        name = getattr(record, "fullName", record.name)
        text = sentence(name, record.levelno, record.getMessage(), "the server", self._log)
        if text and (is_ours(name) or not self.over):
            self._say(text)

    def install(self) -> None:
        """Replace FLARE's console handler."""
        root = logging.getLogger()
        for handler in [one for one in root.handlers if type(one) is logging.StreamHandler]:
            root.removeHandler(handler)
        root.addHandler(self)


class SiteLogs:
    """Those records of the sites' log files that the console shows."""

    def __init__(self, workspace: Path, sites: Sequence[str]) -> None:
        self._paths = {site: workspace / site / RECORDS for site in sites}
        self._read = dict.fromkeys(sites, 0)

    def news(self) -> Iterator[str]:
        """Yield a line for every record since the last call that is ours or an error of FLARE's."""
        for site, path in self._paths.items():
            for record in self._new_records(site, path):
                level = logging.getLevelNamesMapping().get(record["levelname"], logging.INFO)
                if text := sentence(record["fullName"], level, record["message"], site, path.with_name(LOG)):
                    yield text

    def _new_records(self, site: str, path: Path) -> Iterator[dict[str, str]]:
        if not path.is_file():
            return
        with path.open("rb") as file:
            if path.stat().st_size < self._read[site]:  # FLARE has rotated it
                self._read[site] = 0
            file.seek(self._read[site])
            for line in file:
                if not line.endswith(b"\n"):  # still being written
                    return
                self._read[site] += len(line)
                with suppress(ValueError):  # a line that a full disk has cut off
                    yield json.loads(line)


def is_ours(name: str) -> bool:
    """Return whether a logger is this project's."""
    return name == OURS or name.startswith(f"{OURS}.")


def sentence(name: str, level: int, message: str, who: str, log: Path) -> str:
    """Return the console's line for a record; empty if it shows none.

    Args:
        name: The logger's full name.
        level: The record's level, a number.
        message: The record's text.
        who: ``the server``, or a site.
        log: File with the complete record.
    """
    lines = message.strip().splitlines() or [""]
    if is_ours(name):
        return message if level < logging.WARNING else f"{logging.getLevelName(level).lower()}: {message}"
    if level < logging.ERROR:
        return ""
    return f"error at {who}, by {name.rpartition('.')[2]}: {lines[0][:_LONGEST]}; {log} has the rest"
