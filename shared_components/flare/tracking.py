"""Send each site's losses and scores to MLflow, Weights & Biases or TensorBoard by FLARE's receivers.

The server selects the tracker in its own environment. A job cannot: it would choose where a server sends data. The
numbers come from the server's records, so that no more data leaves a site.
"""

import importlib.util
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.analytix_utils import create_analytic_dxo
from nvflare.app_common.widgets.streaming import AnalyticsReceiver

from shared_components.common.extras import remedy
from shared_components.reporting.records import round_number
from shared_components.reporting.tensorboard import flatten

logger = logging.getLogger(__name__)

VARIABLE = "SURGFL_TRACKING"
LONGEST_END = 60.0  # seconds that a job waits at its end for a slow tracker
_NOT_IN_NAMES = re.compile(r"[^\w\-. /]")  # MLflow refuses them
_Record = Mapping[str, Any]


def _mlflow(job: str, run: Path) -> AnalyticsReceiver:
    """Return FLARE's receiver, for the server of ``MLFLOW_TRACKING_URI`` or a file store in the run."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from nvflare.app_opt.tracking.mlflow.mlflow_receiver import MLflowReceiver

    store = os.environ.get("MLFLOW_TRACKING_URI") or (run / "server" / "mlflow").resolve().as_uri()
    names: dict[str, Any] = {"experiment_name": job, "run_name": run.name, "experiment_tags": {}, "run_tags": {}}
    return MLflowReceiver(tracking_uri=store, kw_args=names)


def _wandb(job: str, run: Path) -> AnalyticsReceiver:
    """Return FLARE's receiver, which writes below the run; it sends data only if ``WANDB_MODE`` is ``online``."""
    from nvflare.app_opt.tracking.wandb.wandb_receiver import WandBReceiver

    class Receiver(WandBReceiver):
        """FLARE's receiver, whose process per site ends with the server instead of waiting forever."""

        def _process_queue_tasks(self, queue: Any) -> None:
            threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
            super()._process_queue_tasks(queue)

    folder = run / "server" / "wandb"
    folder.mkdir(parents=True, exist_ok=True)
    private = {
        "x_disable_meta": True,
        "x_disable_stats": True,
        "disable_git": True,
        "save_code": False,
        "host": "server",
        "console": "off",
        "silent": True,
    }
    args = {
        "project": os.environ.get("WANDB_PROJECT", "surgfl"), "name": f"{job}-{run.name}", "group": run.name,
        "job_type": "federation", "dir": str(folder), "config": {}, "settings": private,
    }  # fmt: skip
    mode = os.environ.get("WANDB_MODE", "offline")
    return Receiver(args, mode=mode, events=[], process_timeout=LONGEST_END)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _tensorboard(job: str, run: Path) -> AnalyticsReceiver:
    """Return FLARE's receiver, which writes `tb_events/<site>` into FLARE's folder of the job."""
    from nvflare.app_opt.tracking.tb.tb_receiver import TBAnalyticsReceiver

    return TBAnalyticsReceiver()


TRACKERS: Mapping[str, Callable[[str, Path], AnalyticsReceiver]] = {
    "mlflow": _mlflow, "tensorboard": _tensorboard, "wandb": _wandb,
}  # fmt: skip
"""FLARE's receivers by the name of their package."""


def check_tracker(name: str, *, key: str = VARIABLE) -> None:
    """Raise ValueError if a tracker is unknown or not installed; an empty name means none."""
    if name and name not in TRACKERS:
        raise ValueError(f"{key} is {name!r}; write {', '.join(TRACKERS)}, or leave it out")
    if name and importlib.util.find_spec(name) is None:
        raise ValueError(f"{key} is {name!r}: {remedy(name)}")


@contextmanager
def track(job: str, run: Path, fl_ctx: FLContext) -> Iterator[Callable[[_Record], None]]:
    """Yield a function that sends a site's record to the server's tracker, by a thread: it never delays a round.

    The first error ends the tracking with a warning, not the job. ``run`` is the folder of the run. `check_tracker`
    accepts the tracker in the environment.
    """
    if not (name := os.environ.get(VARIABLE, "")):
        yield lambda record: None
        return
    records: queue.SimpleQueue[_Record | None] = queue.SimpleQueue()
    thread = threading.Thread(target=_send, args=(name, job, run, records, fl_ctx), name="tracking", daemon=True)
    thread.start()
    try:
        yield records.put
    finally:
        records.put(None)
        thread.join(LONGEST_END)
        if thread.is_alive():
            logger.warning("%s did not answer within %g s; its last numbers may be missing", name, LONGEST_END)


def _send(name: str, job: str, run: Path, records: "queue.SimpleQueue[_Record | None]", fl_ctx: FLContext) -> None:
    """Send records until None."""
    try:
        receiver = TRACKERS[name](job, run)
        receiver.initialize(fl_ctx)
        try:
            while (record := records.get()) is not None:
                send_record(receiver, record, fl_ctx)
        finally:
            receiver.finalize(fl_ctx)
    except Exception as error:  # a tracker's own, of any type
        logger.warning("%s tracks no more of job %s: %s: %s", name, job, type(error).__name__, error)


def send_record(receiver: AnalyticsReceiver, record: _Record, fl_ctx: FLContext) -> None:
    """Send every number of a site's record under the site's name, with the round as its step."""
    site = record["site"]
    for tag, value in flatten(record).items():
        tag = _NOT_IN_NAMES.sub("_", tag.removeprefix(f"{site}/"))
        step = round_number(record["round"])
        dxo = create_analytic_dxo(tag, value, AnalyticsDataType.SCALAR, global_step=step)
        receiver.save(fl_ctx, dxo.to_shareable(), site)
