"""Ask at the terminal for values that were not given, and read the answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from shared_components.data.custom.description import NUMBERS
from shared_components.data.site import SiteError


class Talk:
    """Asks at the terminal (``ask``) for values that were not given, or else takes the proposed ones."""

    def __init__(self, *, ask: bool) -> None:
        self.ask = ask

    def get(
        self, option: str, given: Any, question: str, proposed: str | None, read: Callable[[str], Any] = str
    ) -> Any:
        """Return what was given, the answer to a question or the proposal; SiteError without any of them."""
        if given is not None:
            return read(given) if isinstance(given, str) else given
        if not self.ask:
            if proposed is None:
                raise SiteError(f"{option} is not given, and nobody is there to ask: {question}; add {option}")
            return read(proposed)
        while True:
            answer = _input(f"{question}{'' if proposed is None else f' [{proposed}]'}: ") or proposed
            try:
                if answer is None:
                    raise ValueError("an answer is needed here")
                return read(answer)
            except ValueError as error:
                print(f"  {error}")


def _input(question: str) -> str:
    try:
        return input(question).strip()
    except EOFError:
        raise SiteError(
            "the answers ended before all was asked; give the rest as options (surgfl site init -h)"
        ) from None


def share_read(answer: str) -> float:
    if not 0 < float(answer) < 1:
        raise ValueError(f"{answer!r} is no share between 0 and 1")
    return float(answer)


def counts_read(answer: str) -> str:
    if not re.fullmatch(NUMBERS, answer):
        raise ValueError(f"{answer!r} is none of frames, fps=1 and every=25")
    return answer


def zero_or_one(answer: str) -> int:
    if answer not in ("0", "1"):
        raise ValueError("answer 0 or 1")
    return int(answer)


def yes_or_no(answer: str) -> bool:
    if answer.lower() not in ("yes", "y", "no", "n"):
        raise ValueError("answer yes or no")
    return answer.lower().startswith("y")


def whole_from_1(answer: str) -> int:
    if not answer.isdecimal() or int(answer) < 1:
        raise ValueError(f"{answer!r} is no whole number of 1 or more")
    return int(answer)
