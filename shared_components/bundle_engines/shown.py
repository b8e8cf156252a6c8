"""Progress of a bundle's run: a bar on a terminal, elsewhere a line of the log from time to time."""

from __future__ import annotations

import atexit
import io
import logging
import os
import sys

from shared_components.common.progress import listen
from shared_components.common.progress_display import Board, StepLog, can_move

logger = logging.getLogger(__name__)


def show_progress() -> None:
    """Display this process's progress from now on; of several that train together only the first one's."""
    if int(os.environ.get("RANK", "0")):
        return
    if not can_move(sys.stdout):
        listen(StepLog("", logger))
        return
    board = Board()
    lines = _Lines(board)
    for one in [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]:
        for handler in one.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
                handler.setStream(lines)
    sys.stdout = lines  # of handlers that are made later
    listen(board.hear)
    board.__enter__()
    atexit.register(board.close)


class _Lines(io.TextIOBase):
    """A stream whose lines stay above the bar."""

    def __init__(self, board: Board) -> None:
        self._board, self._begun = board, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        if lines:
            self._board.say("\n".join(lines))
        return len(text)
