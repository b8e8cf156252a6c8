"""FL-EndoViT's downstream tables: Kirchner et al., MIDL 2026, arXiv 2504.16612, Tables 2 to 6, 10 and 11.

A row is what the encoder begins from, how many videos it is fine-tuned on, at which resolution, and whether it trains.
One site trains, as published; several train together by FedAvg, but those of GynSurg, which are its folds, alone.
Networks and training are the bundles', whose numbers are the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from shared_components.common.counted import counted
from shared_components.experiments.comparison.plan import (
    SMOKE_TEST,
    DataChanges,
    Hospitals,
    Preset,
    Scale,
    Variant,
    Versus,
)
from shared_components.experiments.comparison.starts import NAMES, RESNET, STARTS

Size = tuple[int, int]
"""Height and width in pixels, or two numbers of videos."""
LOW: dict[str, Size] = {"quick": (32, 32), "small": (64, 64), "paper": (224, 224)}
HIGH: dict[str, Size] = {"quick": (40, 64), "small": (72, 128), "paper": (256, 448)}
"""Of the network's input, by scale."""
SECOND_STAGE = "fl_endovit_tecno"
RN50 = Variant(NAMES[RESNET], "local", bundle="resnet_clips", start=RESNET)
"""Table 10's baseline: ResNet-50 from ImageNet's weights, trained as the other rows are."""
_BASE: dict[str, Any] = {"network": {"architecture": "base"}}


@dataclass(frozen=True)
class Use:
    """What the encoder is fine-tuned for: its bundle, its rendered sites, and the paper's numbers."""

    bundle: str
    hospitals: Hospitals
    videos: tuple[int, int, int]  # of a site: train, validation, test
    rounds: int  # epochs
    few: tuple[int, ...] = ()  # training videos of the few-shot rows
    method: str = "fedavg"
    resolutions: tuple[str, ...] = ("",)
    staged: bool = False  # TeCNO's second stage follows
    tasks: tuple[tuple[str, Mapping[str, Any]], ...] = ()  # numbers below the scale `paper`, by kind of task
    quick: Size = (1, 2)  # videos to validate and to test at that scale
    small: Size = (2, 8)  # likewise; of fewer than eight no p is below 0.01
    tested: tuple[str, ...] = ("",)  # metrics that are compared video by video, see `plan.Versus`


SEGMENTATION = Use(
    "fl_endovit_segmentation", Hospitals("segmentation", (("crimson", "cholecseg8k"),)), (13, 2, 2), 10, (1, 2, 4),
    resolutions=("low", "high"),
)  # fmt: skip
TRIPLETS = Use(
    "fl_endovit_triplets", Hospitals("triplets", (("crimson", "cholect45"),)), (31, 5, 9), 10, (2, 4, 8)
)  # fmt: skip
PHASES = Use(
    "fl_endovit_phases", Hospitals("phases", (("crimson", "cholect45"),), "phases"), (40, 8, 32), 15, (2, 4, 8),
    staged=True,
    tested=("f1", "accuracy"),
)  # fmt: skip
CLIPS = Use(
    "fl_endovit_clips",
    Hospitals("folds", tuple((look, "appendix300") for look in ("rose", "amber", "ivory", "violet"))),
    (48, 6, 12),
    40,
    method="local",
    tasks=(("classification", {"frames": 2}),),
    quick=(6, 6),  # of all six grades
    small=(6, 12),
)


def _rows(use: Use, *, videos: Sequence[int] = (0,), frozen: Sequence[bool] = (False,)) -> Iterable[Variant]:
    """Yield the rows of a table; what a label says after the start is common to all starts."""
    for fixed, count, resolution, start in product(frozen, videos, use.resolutions, STARTS):
        shots = counted(count, "video") if count else "all videos" if use.few else ""
        parts = (STARTS[start], shots, resolution, "frozen" * fixed)
        label = ", ".join(part for part in parts if part)
        network = {"trained_encoders": False} if fixed else {}
        row = Variant(
            label, use.method, bundle=use.bundle, network=network, start=start, data=DataChanges(videos=count)
        )
        yield from _stages(row) if use.staged else (row,)


def _stages(row: Variant) -> tuple[Variant, Variant]:
    """Return TeCNO's stages: frames, then sequences over the encoder that the first has learnt."""
    first = replace(row, label=f"{row.label}, S1")
    second = replace(row, label=f"{row.label}, S2", bundle=SECOND_STAGE, network={}, training={"batch_size": 1})
    return first, replace(second, after=first)


def _scales(use: Use, rows: Sequence[Variant]) -> dict[str, Scale]:
    """Return the sizes; all of a use's tables share them, and with them sites and runs."""
    sites, most = len(use.hospitals.sites), max(use.few, default=use.videos[0] // 2 - 1) + 1

    def scale(name: str, rounds: int, frames: int, size: Size, videos: Size, **training: Any) -> Scale:
        height, width = LOW[name]
        changes: dict[str, Any] = {"": {} if name == "paper" else {"tasks": dict(use.tasks)}}
        for row in rows:
            own = dict(_BASE) if name == "paper" and row.start != RESNET else {}
            if ", high" in row.label:
                own["training"] = dict(zip(("height", "width"), HIGH[name], strict=True))
            changes[row.label] = own
        split = use.videos if name == "paper" else (most, *videos)
        return Scale(
            rounds, {"height": height, "width": width, **training}, frames, *size, (split,) * sites,
            SMOKE_TEST if name == "quick" else "", changes,
        )  # fmt: skip

    return {
        "quick": scale("quick", 1, 2, (64, 96), use.quick, batch_size=2, iterations=1),
        "small": scale("small", 10, 8, (80, 128), use.small, batch_size=8, epochs=1),
        "paper": scale("paper", use.rounds, 60, (480, 854), (0, 0)),
    }


def _table(
    number: int,
    title: str,
    use: Use,
    layout: str = "ablation",
    remark: str = "",
    baselines: Sequence[Variant] = (),
    **rows: Any,
) -> Preset:
    variants = (*baselines, *_rows(use, **rows))
    ours, theirs = STARTS["federated"], STARTS["centralised"]
    shown = [row.label.removeprefix(ours) for row in variants if row.start == "federated"]
    pairs = {
        what.removeprefix(", ").replace("all videos", "all") or "all": (ours + what, theirs + what) for what in shown
    }
    return Preset(
        f"Layout of FL-EndoViT, Table {number}: {title}", variants, layout, remark=remark, hospitals=use.hospitals,
        versus=tuple(Versus((ours, theirs), pairs, metric) for metric in use.tested), scales=_scales(use, variants),
    )  # fmt: skip


def _few(number: int, title: str, use: Use) -> Preset:
    return _table(number, f"few-shot {title}", use, videos=(*use.few, 0))


def _frozen(title: str, use: Use) -> Preset:
    return _table(6, f"full fine-tuning and frozen backbone, {title}", use, frozen=(False, True))


_FOLDS = "a site is a fold, which trains alone"
DOWNSTREAM_TABLES = {
    "fl-endovit-table2": _few(2, "segmentation", SEGMENTATION),
    "fl-endovit-table3": _few(3, "action triplets", TRIPLETS),
    "fl-endovit-table4": _few(4, "phases", PHASES),
    "fl-endovit-table5": _table(5, "clips", CLIPS, remark=_FOLDS),
    "fl-endovit-table6-segmentation": _frozen("segmentation", SEGMENTATION),
    "fl-endovit-table6-triplets": _frozen("action triplets", TRIPLETS),
    "fl-endovit-table6-phases": _frozen("phases", PHASES),
    "fl-endovit-table10": _table(10, "clips by fold", CLIPS, "scores", _FOLDS, [RN50]),
    "fl-endovit-table11": _table(11, "clips by class", CLIPS, "classes", _FOLDS),
}
