"""Ask at the terminal for values that were not given, and read the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from shared_components.common.plain_yaml import read_yaml
from shared_components.common.schema import check_values
from shared_components.data.site import SiteError
from shared_components.data.site_file import KEYS


@dataclass(frozen=True)
class Prompt:
    """Asks at the terminal for values that were not given; without `ask`, takes the proposed values."""

    ask: bool

    def get(
        self, option: str, given: Any, question: str, proposed: str | None, read: Callable[[str], Any] = str
    ) -> Any:
        """Return the given value, the answer to a question, or the proposed value; SiteError if there is none."""
        if given is not None:
            return read(given) if isinstance(given, str) else given
        if not self.ask:
            if proposed is None:
                raise SiteError(f"{option} is not given, and nobody is there to ask: {question}; add {option}")
            return read(proposed)
        while True:
            try:
                answer = input(f"{question}{'' if proposed is None else f' [{proposed}]'}: ").strip() or proposed
            except EOFError:
                raise SiteError(
                    "the answers ended before all was asked; give the rest as options (surgfl site init -h)"
                ) from None
            try:
                if answer is None:
                    raise ValueError("an answer is needed here")
                return read(answer)
            except ValueError as error:
                print(f"  {error}")


def read_as(key: str) -> Callable[[str], Any]:
    """Return a function that reads an answer as the value of a key of site.yaml; ValueError if it is invalid."""
    return partial(_read, key)


def _read(key: str, answer: str) -> Any:
    value = read_yaml(answer)
    check_values(KEYS, {key: value})
    return value


def yes_or_no(answer: str) -> bool:
    if answer.lower() not in ("yes", "y", "no", "n"):
        raise ValueError("answer yes or no")
    return answer.lower().startswith("y")
