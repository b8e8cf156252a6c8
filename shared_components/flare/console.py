"""What a person reads while FLARE runs: in a simulator our lines and bars alone, elsewhere the log.

FLARE's own records go to `<workspace>/<party>/log.txt` whatever the console shows; of its errors the console gets one
sentence each with that file's path. Whoever asks the simulator for another console (`-l full`) gets that one instead.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TextIO

from nvflare.apis.fl_context import FLContext
from nvflare.fuel.utils.log_utils import LogMode, default_log_dict

from shared_components.common.atomic import write_json
from shared_components.common.progress import Step, heard
from shared_components.common.progress_display import PAUSE, Board
from shared_components.common.sanitise import printable

CONFIG = "log_config_sites.json"  # in the workspace: how its sites' processes log
LOG, RECORDS = "log.txt", "log.json"  # of a party, in its folder of the workspace
FAILED = "FAILED: "  # begins the line of a log that says why a job has ended early
OURS = "shared_components"
SERVER = "server"
_LONGEST = 400  # characters of a foreign error that are repeated

Say = Callable[[str], None]

logger = logging.getLogger(__name__)


class Console(Protocol):
    """Where the controller's lines go; as a context while the job runs."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: object) -> None: ...

    def say(self, text: str) -> None:
        """Write lines that stay."""

    def show(self, title: str, steps: Callable[[], Mapping[str, Step]]) -> None:
        """Show from now on how far the sites are."""

    def look(self) -> None:
        """Pass on what the sites' processes have logged since the last look."""

    def end(self) -> None:
        """Take the outcome for known: errors of FLARE's way out interest nobody."""

    def close(self) -> None:
        """Say nothing more: the process ends."""


class LogConsole:
    """FLARE's log, which has times and names of its own."""

    def __enter__(self) -> LogConsole:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def say(self, text: str) -> None:
        for line in printable(text).splitlines():
            logger.info("%s", line)

    def show(self, title: str, steps: Callable[[], Mapping[str, Step]]) -> None:
        """Nothing: the sites' own logs say it."""

    def look(self) -> None:
        """Nothing: the sites' own consoles say it."""

    def end(self) -> None:
        """Nothing: the log keeps everything."""

    def close(self) -> None:
        """Nothing to remove."""


class SimulatorConsole:
    """A simulator's standard output, which the server's process alone writes to.

    Args:
        workspace: The simulator's.
        sites: Their names.
        out: Where lines and bars go.
        pause: Seconds of silence before a line says how far the sites are.
    """

    def __init__(
        self, workspace: Path, sites: Sequence[str], *, out: TextIO | None = None, pause: float = PAUSE
    ) -> None:
        self._board = Board(out, read=self._read, title=lambda: self._title, pause=pause)
        self._title = ""
        self._steps: Callable[[], Mapping[str, Step]] = dict
        self._own: dict[str, Step] = {}
        self._logs = SiteLogs(workspace, sites)
        self._handler = OursOnly(self._board.say, workspace / SERVER / LOG)
        self._open = ExitStack()

    def __enter__(self) -> SimulatorConsole:
        self._handler.install()
        self._board.__enter__()  # which stays until FLARE has ended, see close
        self._open.enter_context(heard(self._hear))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def close(self) -> None:
        """Remove the bars, before the process ends."""
        self._board.close()

    def say(self, text: str) -> None:
        self._board.say(text)

    def show(self, title: str, steps: Callable[[], Mapping[str, Step]]) -> None:
        self._title, self._steps = title, steps

    def look(self) -> None:
        for line in self._logs.news():
            self.say(line)

    def end(self) -> None:
        self._handler.over = True
        self._title, self._steps, self._own = ("", dict, {"": Step("FLARE ends its processes")})

    def _hear(self, step: Step) -> None:
        self._own = {SERVER: step}

    def _read(self) -> Mapping[str, Step]:
        """Return the steps of the sites that are at work, or the server's own while none is."""
        return self._steps() or self._own


def wanted(fl_ctx: FLContext) -> bool:
    """Say whether the simulator's console is FLARE's default, which nobody has asked for."""
    return _arguments(fl_ctx).log_config in (None, LogMode.CONCISE)


def hush_sites(fl_ctx: FLContext, workspace: Path) -> None:
    """Let the processes that FLARE starts for the sites from now on write their log files alone."""
    config = copy.deepcopy(default_log_dict)
    del config["handlers"]["consoleHandler"]
    config["loggers"]["root"]["handlers"].remove("consoleHandler")
    write_json(workspace / CONFIG, config)
    _arguments(fl_ctx).log_config = str(workspace / CONFIG)


def _arguments(fl_ctx: FLContext) -> Any:
    """Return the simulator's own arguments, by which it starts its workers."""
    return fl_ctx.get_engine().args


class OursOnly(logging.Handler):
    """In the server's process the console's handler, in place of FLARE's.

    Args:
        say: Writes a line.
        log: Where all records are.
    """

    def __init__(self, say: Say, log: Path) -> None:
        super().__init__(logging.INFO)
        self._say, self._log = say, log
        self.over = False  # once the outcome is known, errors of FLARE's way out interest nobody

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record of ours, or the first line of a foreign error."""
        name = getattr(record, "fullName", record.name)
        text = sentence(name, record.levelno, record.getMessage(), "the server", self._log)
        if text and (is_ours(name) or not self.over):
            self._say(text)

    def install(self) -> None:
        """Take the console from FLARE."""
        root = logging.getLogger()
        for handler in [one for one in root.handlers if type(one) is logging.StreamHandler]:
            root.removeHandler(handler)
        root.addHandler(self)


class SiteLogs:
    """What the sites' processes write to their log files, as far as it is for the console.

    Args:
        workspace: The simulator's.
        sites: Their names.
    """

    def __init__(self, workspace: Path, sites: Sequence[str]) -> None:
        self._paths = {site: workspace / site / RECORDS for site in sites}
        self._read = dict.fromkeys(sites, 0)

    def news(self) -> Iterator[str]:
        """Yield a line for every record since the last call that is ours, or a foreign error."""
        for site, path in self._paths.items():
            for record in self._new_records(site, path):
                level = logging.getLevelNamesMapping().get(record["levelname"], logging.INFO)
                if text := sentence(record["fullName"], level, record["message"], site, path.with_name(LOG)):
                    yield text

    def _new_records(self, site: str, path: Path) -> Iterator[dict[str, str]]:
        if not path.is_file():
            return
        with path.open("rb") as file:
            if path.stat().st_size < self._read[site]:  # it was begun anew, since it had become too large
                self._read[site] = 0
            file.seek(self._read[site])
            for line in file:
                if not line.endswith(b"\n"):  # it is being written
                    return
                self._read[site] += len(line)
                yield json.loads(line)


def is_ours(name: str) -> bool:
    """Say whether a logger is this project's."""
    return name == OURS or name.startswith(f"{OURS}.")


def sentence(name: str, level: int, message: str, who: str, log: Path) -> str:
    """Return what the console says of a record; empty: nothing.

    Args:
        name: The logger's, in full.
        level: Its number.
        message: The record's.
        who: ``the server``, or a site.
        log: Where more of it is.
    """
    lines = message.strip().splitlines() or [""]
    if is_ours(name):
        return message if level < logging.WARNING else f"{logging.getLevelName(level).lower()}: {message}"
    if level < logging.ERROR:
        return ""
    return f"error at {who}, by {name.rpartition('.')[2]}: {lines[0][:_LONGEST]}; {log} has the rest"
