"""FedSurg's two questions (EndoVis 2024, arXiv 2510.04772): a video's grade at a centre that took no part, and after
a centre's own training.

Rows of Task 1 are scored at the unseen centre as they left the federation; rows of Task 2 train there, too, from a
federation's model or alone. All have FL-EndoViT's network of whole videos.
"""

from __future__ import annotations

from typing import Any

from shared_components.experiments.comparison.plan import SMOKE_TEST, DataChanges, Preset, Scale, Variant

BUNDLE = "fl_endovit_clips"
_TRAINING = {
    "batch_size": 6,
    "crops": False,
    "colour": 0.0,
    "optimizer": "adamw",
    "weight_decay": 0.05,
    "schedule": "cosine",
    "warmup_rounds": 1,
    "learning_rate": 2e-4,
}
TASK = {"classification": {"frames": 2}}
FEDSURG_SCALES = {
    "quick": Scale(
        2, {**_TRAINING, "height": 32, "width": 32, "iterations": 2}, 2, 64, 64,
        remark=SMOKE_TEST,
    ),
    "small": Scale(12, {**_TRAINING, "height": 64, "width": 64, "epochs": 2}, 2, 80, 96),
    "paper": Scale(
        40, {"height": 224, "width": 224}, 20, 540, 960,
        changes={"": {"network": {"architecture": "base"}}},
        weights="an encoder of ViT-B/16, such as EndoViT's published weights",
    ),
}  # fmt: skip


def _row(label: str, method: str, **more: Any) -> Variant:
    return Variant(label, method, bundle=BUNDLE, tasks=TASK, **more)


_ALL_TRAIN = DataChanges(held_out_trains=True)
_FEDAVG = _row("FedAvg", "fedavg")
_FEDSAM = _row("FedSAM, adaptive", "fedsam", arguments={"adaptive": True, "rho": 0.5})
FEDSURG = Preset(
    "Layout of FedSurg, Tasks 1 and 2",
    (
        _row("Untrained", "fedavg", trains=False),
        _row("FedAvg, frozen encoder", "fedavg", network={"trained_encoders": False}),
        _row("Centralised", "centralised"),
        _FEDAVG,
        _FEDSAM,
        _row("FedMedian", "fedmedian"),
        _row("Local (2)", "local", data=_ALL_TRAIN),
        *(_row(f"{row.label}, fine-tuned (2)", "local", after=row, data=_ALL_TRAIN) for row in (_FEDAVG, _FEDSAM)),
    ),
    layout="unseen",
    site_set="fedsurg",
    scales=FEDSURG_SCALES,
    remark="(2), Task 2: every centre trains alone, the unseen one, too, on its own few videos; others see none of its",
)
