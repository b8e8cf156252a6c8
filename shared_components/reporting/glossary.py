"""Remarks below tables that explain metrics and policies; no other module of reporting knows metrics by name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shared_components.core.card import Metric

_METRICS = {
    "hd95": (
        "HD95 by medpy's definition pools the surface distances of both directions before the 95th percentile; "
        "MONAI's takes the percentile of each direction and then the larger"
    ),
    "rmse_scaled": "scaled: after the prediction was multiplied by the ratio of both medians, frame by frame",
}
_POLICIES = {
    "diagonal": "Dice 0 and the image diagonal as distance",
    "paper": "the released code's first-pixel policy, kept for comparison with the paper",
}


def remarks(metrics: Sequence[Metric]) -> list[str]:
    """Return the remarks on these metrics."""
    return [_METRICS[metric.name] for metric in metrics if metric.name in _METRICS]


def policy_remark(records: Iterable[Mapping[str, Any]]) -> str:
    """Explain the score of a frame in which only one of truth and prediction is empty, if a record names its policy."""
    policies = sorted({str(record["policy"]) for record in records if "policy" in record})
    named = "; ".join(_POLICIES.get(policy, policy) for policy in policies)
    return f"Where only one of truth and prediction is empty a frame scores {named}" if named else ""


def directions(metrics: Sequence[Metric]) -> str:
    """List the metrics by direction, with their units: "Dice: higher is better; ..."."""
    found: dict[str, list[str]] = {}
    for metric in metrics:
        unit = f"in {metric.plain_unit}, " if metric.plain_unit else ""
        way = f"{unit}{'higher' if metric.higher_is_better else 'lower'} is better"
        found.setdefault(way, []).append(metric.label)
    return "; ".join(f"{', '.join(labels)}: {way}" for way, labels in found.items())
