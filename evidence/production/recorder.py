"""Record what a party's processes hand to the network, before TLS: a deployment's `sitecustomize`.

Every connection of FLARE's is a `Connection` whose `send_frame` gives bytes to gRPC, HTTP or a socket. Each process
appends what it gives to a file of its own, ``wire/<party>/<process>.frames``, and the kinds of connections it has used
to ``wire/<party>/<process>.kinds``. Frames are written whole, one behind the other.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

MARK = "SURGFL_TEST_DEPLOYMENT"  # as in deployment.py: this module stands alone where it is installed
WIRE = "wire"


def record(folder: Path) -> None:
    """Let every class of connections write its frames below a folder first."""
    from nvflare.fuel.f3.connection import Connection

    folder.mkdir(parents=True, exist_ok=True)
    frames, lock = (folder / f"{os.getpid()}.frames").open("ab", buffering=0), threading.Lock()
    kinds: set[str] = set()

    def wrap(cls: Any, **options: Any) -> None:
        send = cls.__dict__.get("send_frame")
        if send is None:
            return

        def noted(self: Any, frame: Any) -> None:
            with lock:
                frames.write(frame)
                if cls.__name__ not in kinds:
                    kinds.add(cls.__name__)
                    (folder / f"{os.getpid()}.kinds").write_text("\n".join(sorted(kinds)))
            send(self, frame)

        cls.send_frame = noted

    for known in Connection.__subclasses__():
        wrap(known)
    Connection.__init_subclass__ = classmethod(wrap)  # type: ignore[assignment]


if __name__ == "sitecustomize":
    party = os.environ.get(MARK, "").partition("/")[2]
    if party:
        record(Path(__file__).resolve().parents[1] / WIRE / party)
