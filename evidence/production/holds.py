"""Hold a party's job process at a place in its code, so that a trial can kill it exactly there."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from evidence.production.at_start import STEP, VARIABLE
from evidence.production.deployment import Party, until

SITE = "shared_components.federation.site.runner:SiteRunner"
SERVER = "shared_components.federation.server.runner:ServerRunner"
SEND = "nvflare.app_opt.pt.tensor_downloader:TensorDownloadable.produce_item"  # called for every tensor
RECEIVE = "nvflare.app_opt.pt.tensor_downloader:TensorConsumer.consume_items"  # called for every received chunk


@dataclass(frozen=True)
class Place:
    """A call of a function: the ``count``-th call after ``times`` calls of the function ``after``.

    Functions are named ``module:Class.function``.
    """

    where: str
    count: int = 1
    after: str = ""
    times: int = 0


EARLY = "before round 1"
AT_SITE = {
    EARLY: Place(f"{SITE}._enrol"),
    "in download": Place(RECEIVE, 1, f"{SITE}._round", 1),
    "in training": Place(STEP, 2, f"{SITE}._round", 2),
    "in upload": Place(SEND, 2, f"{SITE}._round", 2),
}
"""Phases of a site: in its enrolment; in the second round, after part of the message, of training, and of its reply."""

AT_SERVER = {
    EARLY: Place(f"{SERVER}.enrolled"),
    "in download": Place(SEND, 2, f"{SERVER}.finish_round", 1),
    "in upload": Place(RECEIVE, 2, f"{SERVER}.finish_round", 1),
    "in aggregation": Place(f"{SERVER}._save", 2),
}
"""Phases of the server: all sites enrolled; in the second round, some messages sent, one answer, all summed."""


@contextmanager
def held(party: Party, place: Place) -> Iterator[Callable[[], int]]:
    """Stop the party's next job process at a place.

    Yields:
        A function that waits until the process has stopped, and returns its process id.
    """
    file = party.kit / "hold.json"
    reached = file.with_name(f"{file.name}.reached")
    reached.unlink(missing_ok=True)
    file.write_text(json.dumps(asdict(place)))
    assert party.variables[VARIABLE] == str(file)

    def wait() -> int:
        text = until(lambda: reached.exists() and reached.read_text("utf-8"), 240, f"{party.name} is not at {place}")
        return int(text)

    try:
        yield wait
    finally:
        file.unlink()


def go_on(process: int) -> None:
    """Continue a stopped process."""
    os.kill(process, signal.SIGCONT)
