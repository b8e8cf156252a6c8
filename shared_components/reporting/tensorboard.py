"""TensorBoard scalars of a running federation, and its progress line per site and round."""

import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_components.common.atomic import not_written
from shared_components.common.progress import duration
from shared_components.core.card import Metric
from shared_components.reporting.costs import site_seconds
from shared_components.reporting.records import round_number, score


def progress_line(
    record: Mapping[str, Any], *, rounds: int, seconds_left: float | None, metric: Metric | None = None
) -> str:
    """Return one line on a site's record: round, loss, score before this round's training, seconds, megabytes, rest.

    ``metric`` selects the site's best model; without it, the line has no score.
    """
    parts = [f"round {round_number(record['round'])}/{rounds}  {record['site']}"]
    if loss := record.get("loss"):
        parts.append(f"loss {sum(loss.values()):.3f}")
    if metric and (scores := record.get("metrics", {}).get(metric.name)):
        parts.append(_score(metric, record["metrics"], scores))
    if seconds := record.get("seconds"):
        parts.append(f"{site_seconds(seconds):.1f} s")
    up, down = (sum(record["bytes"][way].values()) / 1e6 for way in ("up", "down"))
    parts.append(f"up {up:.1f} MB, down {down:.1f} MB")
    if seconds_left is not None:
        parts.append(f"about {duration(seconds_left)} left")
    return "  ".join(parts)


def _score(metric: Metric, record: Mapping[str, Any], names: Mapping[str, Any]) -> str:
    """Write ``Dice 0.402 (shaft 0.361 wrist 0.196)``, or ``RMSE 4.31 mm`` for a single number."""
    each = " ".join(f"{n} {metric.plain_text(score(record, metric.name, n))}" for n in names if n != "mean")
    text = f"{metric.label} {metric.with_unit(score(record, metric.name))}"
    return f"{text} ({each})" if each else text


def write_scalars(folder: Path, record: Mapping[str, Any]) -> None:
    """Add a record's numbers to the TensorBoard log in ``folder``, by site and round from 1; NotWritten if it fails."""
    # slow to import, and not needed to start training
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    values = [Summary.Value(tag=name, simple_value=value) for name, value in flatten(record).items()]
    events = [Event(wall_time=time.time(), step=round_number(record["round"]), summary=Summary(value=values))]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = next(folder.glob("events.out.tfevents.*"), folder / f"events.out.tfevents.{int(time.time())}")
        if not path.is_file():
            events.insert(0, Event(wall_time=time.time(), file_version="brain.Event:2"))
        buffer = io.BytesIO()
        for event in events:
            RecordWriter(buffer).write(event.SerializeToString())
        with path.open("ab") as file:  # one file for all rounds, also if each round has a new process
            file.write(buffer.getvalue())
    except OSError as error:
        raise not_written(folder, error) from error


def flatten(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a site's or an aggregation's record as ``group/name`` scalars."""
    scalars: dict[str, float] = {}
    for group in ("loss", "metrics", "seconds", "bytes", "entropy"):
        _collect(f"{record.get('site', 'server')}/{group}", record.get(group), scalars)
    return scalars


def _collect(prefix: str, value: Any, into: dict[str, float]) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _collect(f"{prefix}/{key}", item, into)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        into[prefix] = float(value)
