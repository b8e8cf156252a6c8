"""Mark each further line of a log record, so that no record can forge another record.

FLARE writes names and errors of other parties into its logs unchanged. A line break in a name would begin a line that
looks like a record, and a terminal would obey control characters.
"""

import logging
import traceback
from functools import cached_property

from shared_components.common.sanitise import printable

MARK = "\n    | "


class MarkedRecord(logging.LogRecord):
    """A record whose text and traceback cannot begin a new line of the log."""

    def getMessage(self) -> str:
        """Return the text with its line breaks marked and without control characters."""
        return _marked(super().getMessage())

    @cached_property  # several formatters read it, each several times
    def _own_traceback(self) -> str:
        assert self.exc_info
        return _marked_traceback("".join(traceback.format_exception(*self.exc_info)))

    @property
    def exc_text(self) -> str | None:
        """The marked traceback, which a formatter uses like a cached traceback."""
        if self.exc_info and self.exc_info[1] is not None:
            return self._own_traceback
        text = vars(self).get("exc_text")  # set if the record comes from another process
        return _marked_traceback(text) if text else None

    @exc_text.setter
    def exc_text(self, text: str | None) -> None:
        """Ignore a formatter's own traceback."""


def mark_lines() -> None:
    """Mark every record of this process from now on."""
    logging.setLogRecordFactory(MarkedRecord)


def _marked_traceback(text: str) -> str:
    return _marked("\n" + text.rstrip()).lstrip("\n")


def _marked(text: str) -> str:
    return printable(text).replace("\n", MARK)
