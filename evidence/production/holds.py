"""Hold a party's process of a job at a place in its code, so that it can be killed exactly there."""

from __future__ import annotations

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
RECEIVE = "nvflare.app_opt.pt.tensor_downloader:TensorConsumer.consume_items"  # for every part that has come


@dataclass(frozen=True)
class Place:
    """A call of a function: the ``count``-th after ``after`` has been called ``times`` times.

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
"""Where a site is: in its enrolment; in the second round, of which it has received, trained and sent a part."""

AT_SERVER = {
    EARLY: Place(f"{SERVER}.enrolled"),
    "in download": Place(SEND, 2, f"{SERVER}.finish_round", 1),
    "in upload": Place(RECEIVE, 2, f"{SERVER}.finish_round", 1),
    "in aggregation": Place(f"{SERVER}._save", 2),
}
"""Where the server is: all have enrolled; in the second round, some is sent, one has answered, all is summed."""


@contextmanager
def held(party: Party, place: Place) -> Iterator[Callable[[], int]]:
    """Let the party's next process of a job stop at a place.

    Yields:
        A function that waits until it has stopped and returns its process id.
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
    """Continue a process that is held."""
    os.kill(process, signal.SIGCONT)
