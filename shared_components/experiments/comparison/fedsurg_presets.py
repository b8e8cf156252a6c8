"""FedSurg's tasks (EndoVis 2024, arXiv 2510.04772): grade videos of an unseen centre, and after fine-tuning.

Task 1 scores the federation's model at the unseen centre. In Task 2 each centre, also the unseen one, fine-tunes a
federation's model or trains alone. All rows use FL-EndoViT's network for whole videos.
"""

from typing import Any

from shared_components.experiments.comparison.plan import SMOKE_TEST, DataChanges, Preset, Scale, Variant

BUNDLE = "fl_endovit_clips"
_TRAINING = {
    "batch_size": 6, "crops": False, "colour": 0.0, "optimizer": "adamw", "weight_decay": 0.05, "schedule": "cosine",
    "warmup_rounds": 1, "learning_rate": 2e-4,
}  # fmt: skip
TASK = {"classification": {"frames": 2}}
FEDSURG_SCALES = {
    "quick": Scale(2, {**_TRAINING, "height": 32, "width": 32, "iterations": 2}, 2, 64, 64, remark=SMOKE_TEST),
    "small": Scale(12, {**_TRAINING, "height": 64, "width": 64, "epochs": 2}, 2, 80, 96),
    "paper": Scale(
        40, {"height": 224, "width": 224}, 20, 540, 960,
        changes={"": {"network": {"architecture": "base"}}},
        weights="an encoder of ViT-B/16, such as EndoViT's published weights",
    ),
}  # fmt: skip


def _row(label: str, method: str, **fields: Any) -> Variant:
    return Variant(label, method, bundle=BUNDLE, tasks=TASK, **fields)


_ALL_TRAIN = DataChanges(held_out_trains=True)
_FEDAVG = _row("FedAvg", "fedavg")
_FEDSAM = _row("FedSAM, adaptive", "fedsam", arguments={"adaptive": True, "rho": 0.5})
FEDSURG = Preset(
    "Layout of FedSurg, Tasks 1 and 2",
    (
        _row("Untrained", "fedavg", trains=False),
        _row("FedAvg, frozen encoder", "fedavg", network={"trained_encoders": False}),
        _row("Centralised", "centralised"), _FEDAVG, _FEDSAM, _row("FedMedian", "fedmedian"),
        _row("Local (2)", "local", data=_ALL_TRAIN),
        *(_row(f"{row.label}, fine-tuned (2)", "local", after=row, data=_ALL_TRAIN) for row in (_FEDAVG, _FEDSAM)),
    ),
    layout="unseen", site_set="fedsurg", scales=FEDSURG_SCALES,
    remark="(2), Task 2: each centre, also the unseen one, trains alone on its few videos, which no other centre sees",
)  # fmt: skip
