"""Refusals in a log: each of them once, and not more than a hundred, so that whoever is refused cannot fill it."""

from __future__ import annotations

from logging import Logger

MOST_SENTENCES = 100  # in one life of a process


class Refusals:
    """What has been refused so far.

    Args:
        logger: Where it is said.
    """

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        """Log a sentence that is new, unless there are too many.

        Args:
            sentence: One line, which names who is refused and why.
        """
        if sentence not in self._said and len(self._said) < MOST_SENTENCES:
            self._said.add(sentence)
            self._logger.error("%s", sentence)
