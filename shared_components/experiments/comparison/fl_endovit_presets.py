"""FL-EndoViT's tables: Kirchner et al., MIDL 2026, arXiv 2504.16612.

Tables 1 and 7 are of pre-training at nine unequal sites; the others are in `fl_endovit_downstream`. All rows take
equal optimizer steps: a round is one epoch of every site, or of their pool. In the released code a plain client takes a
step at every 300th batch (`accum_iter`), which are four a round at the largest site, two at the next and none
elsewhere, and adaptive SAM one at every batch: the row `as released` does so to FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared_components.experiments.comparison.plan import (
    AVERAGED,
    BEST_OF,
    LAST,
    SMOKE_TEST,
    DataChanges,
    Preset,
    Scale,
    Variant,
    Versus,
)

BUNDLE = "fl_endovit"
SAM = {"adaptive": True, "rho": 0.7, "eta": 0.2}
"""Of the rows of adaptive FedSAM; the release's."""
KRUM = {"keep": 2 / 3}
"""The paper's "KRUM" is Multi-Krum, which keeps 6 of its 9 sites; of fewer sites it keeps as large a share."""
KRUM_REMARK = "Multi-Krum averages two thirds of the sites, 6 of 9"
TRAINING: dict[str, Any] = {"learning_rate": 1e-3, "layer_decay": 1.0, "least_learning_rate": 1e-6, "warmup_rounds": 1}
"""Of all rows, beside the bundle's own: AdamW, a cosine, crops of at least 0.6 of a frame's area."""
RELEASED = "FedAvg, as released"
_SMALL = {"height": 64, "width": 64, **TRAINING}
PRETRAINING_SCALES = {
    "quick": Scale(
        2, {**_SMALL, "height": 32, "width": 32, "batch_size": 32}, 1, 80, 96,
        changes={RELEASED: {"training": {"accumulate": 4}}},
        remark=SMOKE_TEST,
    ),
    "small": Scale(
        8, {**_SMALL, "batch_size": 8}, 2, 80, 96, changes={RELEASED: {"training": {"accumulate": 26}}}
    ),
    "paper": Scale(
        15, {"height": 224, "width": 224}, 256, 256, 320,
        changes={
            "": {"network": {"architecture": "base"}, "tasks": {"reconstruction": {"patch": 16}}},
            RELEASED: {"training": {"accumulate": 300}},
        },
    ),
}  # fmt: skip
"""``accumulate`` leaves six steps a round at nine sites, as 300 does at the paper's sizes: its largest site has 1,369
batches of 256."""


def _row(label: str, method: str, models: Sequence[str] = (LAST, AVERAGED), **more: Any) -> Variant:
    """Return the row of a method, and beside it that of its mean over rounds."""
    shows = dict(zip((label, f"{label} + SWA"), models, strict=True))
    return Variant(label, method, bundle=BUNDLE, shows=shows, **more)


_CENTRALISED, _FEDSAM = _row("Centralised", "centralised"), _row("Adaptive FedSAM", "fedsam", arguments=SAM)
_FEDAVG = _row("FedAvg", "fedavg")
_BEFORE = {"SSS": "segmentation", "ATR": "triplets", "SPR": "phases"}
"""Table 7's variants: the task after pre-training, whose videos of Cholec80 are left out."""
_CONTROLS = Variant(
    "Controls", "fedavg", bundle=BUNDLE, trains=False, shows={"Mean colour": "mean colour", "Untrained": "untrained"}
)

PRETRAINING_TABLES = {
    "fl-endovit-table1": Preset(
        "Layout of FL-EndoViT, Table 1: pre-training at nine unequal sites, at equal steps",
        (
            _CENTRALISED,
            _FEDSAM,
            _FEDAVG,
            _row("FedMedian", "fedmedian"),
            *(_row(f"QFedAvg (q = {q:g})", "qfedavg", arguments={"q": q}) for q in (2.0, 0.5)),
            _row("FedAvgM", "fedavgm"),
            _row("Multi-Krum", "multi_krum", arguments=KRUM),
            _row("FedAdam", "fedadam"),
            _row(RELEASED, "fedavg"),
            _CONTROLS,
        ),
        layout="patches",
        site_set="endo700k",
        start="random",
        rounds=15,
        scales=PRETRAINING_SCALES,
        versus=(
            Versus.of("Adaptive FedSAM", "Centralised"),
            Versus.of("Adaptive FedSAM", "FedAvg"),
            Versus.of("FedAvg", RELEASED),
        ),
        remark="as released: plain clients take a step at every so many batches, which leaves six a round in all; "
        f"{KRUM_REMARK}",
    ),
    "fl-endovit-table7": Preset(
        "Layout of FL-EndoViT, Table 7: pre-training before three tasks",
        tuple(
            _row(
                f"{task}, {row.label}",
                row.method,
                tuple(BEST_OF),
                arguments=row.arguments,
                data=DataChanges(leaves_out=left),
            )
            for task, left in _BEFORE.items()
            for row in (_CENTRALISED, _FEDSAM, _FEDAVG)
        ),
        layout="patches",
        site_set="endo700k",
        start="random",
        scales=PRETRAINING_SCALES,
        versus=(
            Versus(
                (_FEDSAM.label, _CENTRALISED.label),
                {task: (f"{task}, {_FEDSAM.label}", f"{task}, {_CENTRALISED.label}") for task in _BEFORE},
            ),
        ),
        remark="of Cholec80 the videos are left out that segmentation (SSS), action triplets (ATR) or phases (SPR) are "
        "tested on; of its rendered site as large a share",
    ),
}
