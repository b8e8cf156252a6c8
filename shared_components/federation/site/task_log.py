"""Log of a site's finished tasks, for its own monitoring; the log never leaves the site."""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from shared_components.federation.messages import Message, Request, total_bytes
from shared_components.reporting.run_metrics import TASK_LOG

logger = logging.getLogger(__name__)


def log_task(folder: Path, request: Request, reply: Message, seconds: Mapping[str, float]) -> None:
    """Append a finished task to the site's log; if that fails, warn and go on.

    ``seconds`` are the task's stages. Sizes are bytes of tensors.
    """
    values = {"task": request.task, "round": request.round, "answered": request.answered}
    sizes = {"sent": _size(reply), "received": _size(request)}
    line = json.dumps({**values, **sizes, "seconds": dict(seconds), "time": time.time()}) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / TASK_LOG).open("ab+") as file:
            if file.seek(0, 2):
                file.seek(-1, 2)
                line = line if file.read(1) == b"\n" else f"\n{line}"  # after a line that a crash cut off
            file.write(line.encode())
    except OSError as error:
        logger.warning("%s could not be written (%s); metrics lack this task", folder / TASK_LOG, error.strerror)


def _size(message: Message | Request) -> int:
    return sum(map(total_bytes, (message.pieces, *message.groups.values())))
