"""Log each refusal once, and at most a hundred of them, so that a refused sender cannot fill the log."""

from __future__ import annotations

from logging import Logger

MOST_SENTENCES = 100  # per process


class Refusals:
    """The refusals that have been logged so far."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        """Log a sentence (one line: who is refused, and why) if it is new and there are not too many."""
        if sentence not in self._said and len(self._said) < MOST_SENTENCES:
            self._said.add(sentence)
            self._logger.error("%s", sentence)
