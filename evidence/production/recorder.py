"""Record the bytes that a party's processes send, before TLS: a deployment's `sitecustomize`.

FLARE's connections are `Connection` objects whose `send_frame` passes bytes to gRPC, HTTP or a socket. Each process
appends these bytes to ``wire/<party>/<process>.frames``, and its kinds of connections to
``wire/<party>/<process>.kinds``. Frames are written whole, one after another.
"""

import os
import threading
from pathlib import Path
from typing import Any

MARK = "SURGFL_TEST_DEPLOYMENT"  # as in deployment.py; this module is installed without it
WIRE = "wire"


def record(folder: Path) -> None:
    """Make every class of connections write its frames to a folder first."""
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
