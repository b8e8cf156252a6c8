"""What a person reads while a federation runs: one line per site and round, and TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def progress_line(record: Mapping[str, Any], *, rounds: int, seconds_left: float | None) -> str:
    """Return one line: round, site, loss, Dice before this round's training, seconds, megabytes, time left."""
    parts = [f"round {record['round'] + 1}/{rounds}  {record['site']}"]
    if loss := record.get("loss"):
        parts.append(f"loss {sum(loss.values()):.3f}")
    if dice := record.get("metrics", {}).get("dice"):
        classes = " ".join(f"{name} {_number(value)}" for name, value in dice.items() if name != "mean")
        parts.append(f"Dice {_number(dice.get('mean'))} ({classes})")
    parts.append(f"{record.get('seconds', {}).get('total', 0):.1f} s")
    up, down = (sum(record["bytes"][way].values()) / 1e6 for way in ("up", "down"))
    parts.append(f"up {up:.1f} MB, down {down:.1f} MB")
    if seconds_left is not None:
        parts.append(f"about {_duration(seconds_left)} left")
    return "  ".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def write_scalars(folder: Path, record: Mapping[str, Any]) -> None:
    """Add a record's numbers to the TensorBoard log in ``folder``, one series per site."""
    from torch.utils.tensorboard import SummaryWriter  # late: it is not needed to start training

    with SummaryWriter(str(folder)) as writer:
        for name, value in flatten(record).items():
            writer.add_scalar(name, value, record["round"])


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
