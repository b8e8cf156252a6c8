"""What a reader must know of a number: remarks below tables, by metric and by field of the records.

The one place of this package that knows metrics by name; one without an entry stands for itself.
"""

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
    """Give what must be known of these metrics."""
    return [_METRICS[metric.name] for metric in metrics if metric.name in _METRICS]


def policy_remark(records: Iterable[Mapping[str, Any]]) -> str:
    """Say what a frame scores in which only one of truth and prediction is empty; nothing where none says."""
    policies = sorted({str(record["policy"]) for record in records if "policy" in record})
    named = "; ".join(_POLICIES.get(policy, policy) for policy in policies)
    return f"Where only one of truth and prediction is empty a frame scores {named}" if named else ""


def directions(metrics: Sequence[Metric]) -> str:
    """Say which metrics are better high and which low, with their units: "Dice: higher is better; ..."."""
    found: dict[str, list[str]] = {}
    for metric in metrics:
        unit = f"in {metric.plain_unit}, " if metric.plain_unit else ""
        way = f"{unit}{'higher' if metric.higher_is_better else 'lower'} is better"
        found.setdefault(way, []).append(metric.label)
    return "; ".join(f"{', '.join(labels)}: {way}" for way, labels in found.items())
