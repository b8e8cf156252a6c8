"""Progress reports: loops report steps, and the listener of the thread displays them."""

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """Progress of one piece of work."""

    what: str  # one word, such as ``training``
    done: int = 0  # finished parts
    total: int | None = 0  # number of parts; None: unknown, 0: the work has no parts
    note: str = ""  # such as ``loss 0.412``

    def __str__(self) -> str:
        of = "" if self.total is None else f"/{self.total}"
        count = f" {self.done}{of}" if self.total != 0 else ""
        return f"{self.what}{count}" + (f" {self.note}" if self.note else "")


Listener = Callable[[Step], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report_progress(what: str, done: int = 0, total: int | None = 0, note: str = "") -> None:
    """Pass a :class:`Step` to this thread's listener, if there is one."""
    if (listener := _listener.get()) is not None:
        listener(Step(what, done, total, note))


def follow(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items and report each as done when the loop asks for the next; `total` defaults to ``len(items)``."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    report_progress(what, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        report_progress(what, done, total)


def listen(listener: Listener) -> None:
    _listener.set(listener)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Set this thread's listener while the block runs."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def changed(change: Callable[[Step], Step]) -> Iterator[None]:
    """Apply a function to every step reported while the block runs."""
    outer = _listener.get()
    if outer is None:
        yield
        return
    with listening(lambda step: outer(change(step))):
        yield


@contextmanager
def under(title: str) -> Iterator[None]:
    """Prefix every step reported while the block runs with a title."""
    with changed(lambda step: replace(step, what=f"{title} {step.what}")):
        yield


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours: ``40 s``, ``9 min``, ``5.6 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def speed(per_second: float, unit: str, seconds_left: float | None) -> str:
    """Return the speed and the remaining time: ``1.6 pictures/s  about 40 s left``."""
    left = "" if seconds_left is None else f"  about {duration(seconds_left)} left"
    return f"{per_second:.1f} {unit}/s{left}"
