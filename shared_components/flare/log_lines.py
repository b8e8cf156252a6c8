"""In every process of a deployment: one record of a log is one line, and every further line of it is marked.

FLARE writes names and errors of other parties into its logs as they come. A line break in one of them would begin a
line that nobody here has written, and a terminal would obey the rest.
"""

from __future__ import annotations

import logging
import traceback

from shared_components.common.sanitise import printable

MARK = "\n    | "


class MarkedRecord(logging.LogRecord):
    """A record whose text, and the traceback of it, cannot begin a line of the log."""

    def getMessage(self) -> str:
        """Return the text with its line breaks marked, and without what a terminal obeys."""
        return _marked(super().getMessage())

    @property
    def exc_text(self) -> str | None:
        """The traceback, marked; a formatter takes it for one that it has made before."""
        text = vars(self).get("exc_text")  # of a record that another process has made
        if self.exc_info and self.exc_info[1] is not None:
            text = "".join(traceback.format_exception(*self.exc_info))
        return _marked("\n" + text.rstrip()).lstrip("\n") if text else None

    @exc_text.setter
    def exc_text(self, text: str | None) -> None:
        """A formatter makes none of its own."""


def mark_lines() -> None:
    """Let every record that this process makes from now on be a marked one."""
    logging.setLogRecordFactory(MarkedRecord)


def _marked(text: str) -> str:
    return printable(text).replace("\n", MARK)
