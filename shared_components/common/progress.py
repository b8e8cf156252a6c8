"""How far something is: loops tell it, and whoever listens in this thread shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """What is being done, how much of it is done, and a few words beside.

    Attributes:
        what: One word, such as ``training``.
        done: Parts that are done.
        total: All parts; None where nobody knows, 0 where it has no parts.
        note: Such as ``loss 0.412``.
    """

    what: str
    done: int = 0
    total: int | None = 0
    note: str = ""

    def __str__(self) -> str:
        of = "" if self.total is None else f"/{self.total}"
        count = f" {self.done}{of}" if self.total != 0 else ""
        return f"{self.what}{count}" + (f" {self.note}" if self.note else "")


Listener = Callable[[Step], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report_progress(what: str, done: int = 0, total: int | None = 0, note: str = "") -> None:
    """Tell whoever listens, see :class:`Step`."""
    if (listener := _listener.get()) is not None:
        listener(Step(what, done, total, note))


def follow(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items and tell of each when it is done with.

    Args:
        items: Anything.
        what: One word.
        total: How many there are; None: as many as ``len`` says, if it does.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    report_progress(what, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        report_progress(what, done, total)


def listen(listener: Listener) -> None:
    """Let this listener hear what is told in this thread from now on."""
    _listener.set(listener)


@contextmanager
def under(title: str) -> Iterator[None]:
    """Let what is told while the block runs begin with these words."""
    outer = _listener.get()
    if outer is None:
        yield
        return
    with heard(lambda step: outer(replace(step, what=f"{title} {step.what}"))):
        yield


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """Let this listener hear what is told while the block runs, in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
