"""FL-EndoViT's tables: Kirchner et al., MIDL 2026, arXiv 2504.16612.

Tables 1 and 7 compare pre-training at nine unequal sites with equal optimizer steps: a round is one epoch of each site,
or of the pooled data. In the released code, a plain client steps at every 300th batch (`accum_iter`): four steps per
round at the largest site, two at the next, none at the others. Adaptive SAM steps at every batch. The row `as released`
does this with FedAvg.

Tables 2 to 6, 10 and 11 fine-tune the encoder. Rows differ in initial weights, number of videos, resolution, and
whether the encoder trains. One site trains as published; several sites train with FedAvg, except GynSurg's folds, which
train separately. Networks and training are those of the bundles, with the paper's values.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from shared_components.common.counted import counted
from shared_components.experiments.comparison import plan
from shared_components.experiments.comparison.names import NAMES, RESNET, STARTS
from shared_components.experiments.comparison.plan import DataChanges, Hospitals, Preset, Scale, Variant, Versus

BUNDLE = "fl_endovit"
SAM = {"adaptive": True, "rho": 0.7, "eta": 0.2}  # the released code's values for adaptive FedSAM
KRUM = {"keep": 2 / 3}
"""The paper's "KRUM" is Multi-Krum with 6 of its 9 sites; with fewer sites the share stays the same."""
KRUM_REMARK = "Multi-Krum averages two thirds of the sites, 6 of 9"
TRAINING: dict[str, Any] = {"learning_rate": 1e-3, "layer_decay": 1.0, "least_learning_rate": 1e-6, "warmup_rounds": 1}
"""Training settings of all rows, beside the bundle's AdamW, cosine schedule and crops of at least 0.6 of the area."""
RELEASED = "FedAvg, as released"
_SMALL = {"height": 64, "width": 64, **TRAINING}
_BASE: dict[str, Any] = {"network": {"architecture": "base"}}
PRETRAINING_SCALES = {
    "quick": Scale(
        2, {**_SMALL, "height": 32, "width": 32, "batch_size": 32}, 1, 80, 96,
        changes={RELEASED: {"training": {"accumulate": 4}}}, remark=plan.SMOKE_TEST,
    ),
    "small": Scale(8, {**_SMALL, "batch_size": 8}, 2, 80, 96, changes={RELEASED: {"training": {"accumulate": 26}}}),
    "paper": Scale(
        15, {"height": 224, "width": 224}, 256, 256, 320,
        changes={
            "": {**_BASE, "tasks": {"reconstruction": {"patch": 16}}}, RELEASED: {"training": {"accumulate": 300}}
        },
    ),
}  # fmt: skip
"""``accumulate`` leaves six steps per round at nine sites, as 300 does at the paper's sizes, whose largest site has
1,369 batches of 256."""


def _pretraining_row(
    label: str, method: str, models: Sequence[str] = (plan.LAST, plan.AVERAGED), **fields: Any
) -> Variant:
    shows = dict(zip((label, f"{label} + SWA"), models, strict=True))
    return Variant(label, method, bundle=BUNDLE, shows=shows, **fields)


_CENTRALISED = _pretraining_row("Centralised", "centralised")
_FEDSAM, _FEDAVG = _pretraining_row("Adaptive FedSAM", "fedsam", arguments=SAM), _pretraining_row("FedAvg", "fedavg")
_CONTROLS = {"Mean colour": "mean colour", "Untrained": "untrained"}
_BEFORE = {"SSS": "segmentation", "ATR": "triplets", "SPR": "phases"}
"""Table 7's variants: the task after pre-training, whose videos of Cholec80 are left out."""
PRETRAINING_TABLES = {
    "fl-endovit-table1": Preset(
        "Layout of FL-EndoViT, Table 1: pre-training at nine unequal sites, at equal steps",
        (
            _CENTRALISED, _FEDSAM, _FEDAVG, _pretraining_row("FedMedian", "fedmedian"),
            *(_pretraining_row(f"QFedAvg (q = {q:g})", "qfedavg", arguments={"q": q}) for q in (2.0, 0.5)),
            _pretraining_row("FedAvgM", "fedavgm"),
            _pretraining_row("Multi-Krum", "multi_krum", arguments=KRUM),
            _pretraining_row("FedAdam", "fedadam"),
            _pretraining_row(RELEASED, "fedavg"),
            Variant("Controls", "fedavg", bundle=BUNDLE, trains=False, shows=_CONTROLS),
        ),
        layout="patches", site_set="endo700k", start="random", rounds=15, scales=PRETRAINING_SCALES,
        versus=(
            Versus.of("Adaptive FedSAM", "Centralised"), Versus.of("Adaptive FedSAM", "FedAvg"),
            Versus.of("FedAvg", RELEASED),
        ),
        remark="As released: plain clients accumulate gradients over so many batches that a round has six steps. "
        f"{KRUM_REMARK}",
    ),
    "fl-endovit-table7": Preset(
        "Layout of FL-EndoViT, Table 7: pre-training before three tasks",
        tuple(
            _pretraining_row(
                f"{task}, {row.label}", row.method, tuple(plan.BEST_OF),
                arguments=row.arguments, data=DataChanges(leaves_out=left_out),
            )
            for task, left_out in _BEFORE.items()
            for row in (_CENTRALISED, _FEDSAM, _FEDAVG)
        ),
        layout="patches", site_set="endo700k", start="random", scales=PRETRAINING_SCALES,
        versus=(
            Versus(
                (_FEDSAM.label, _CENTRALISED.label),
                {task: (f"{task}, {_FEDSAM.label}", f"{task}, {_CENTRALISED.label}") for task in _BEFORE},
            ),
        ),
        remark="Training leaves out the Cholec80 videos that test segmentation (SSS), action triplets (ATR) or phases "
        "(SPR); the rendered site leaves out the same share",
    ),
}  # fmt: skip

Size = tuple[int, int]
"""Height and width in pixels, or two numbers of videos."""
LOW: dict[str, Size] = {"quick": (32, 32), "small": (64, 64), "paper": (224, 224)}
HIGH: dict[str, Size] = {"quick": (40, 64), "small": (72, 128), "paper": (256, 448)}
"""Input sizes of the network, by scale."""
SECOND_STAGE = "fl_endovit_tecno"
RN50 = Variant(NAMES[RESNET], "local", bundle="resnet_clips", start=RESNET)
"""Table 10's baseline: ResNet-50 with ImageNet weights, trained as the other rows."""


@dataclass(frozen=True)
class Use:
    """Task of the fine-tuned encoder: bundle, rendered sites, and the paper's numbers."""

    bundle: str
    hospitals: Hospitals
    videos: tuple[int, int, int]  # train, validation, test per site
    rounds: int  # epochs
    few: tuple[int, ...] = ()  # training videos of the few-shot rows
    method: str = "fedavg"
    resolutions: tuple[str, ...] = ("",)
    staged: bool = False  # TeCNO's second stage follows
    frames: int = 0  # frames per sample at the scales `quick` and `small`; 0: the bundle's
    quick: Size = (1, 2)  # validation and test videos at the scale `quick`
    small: Size = (2, 8)  # and `small`; with fewer than eight test videos, no p is below 0.01
    tested: tuple[str, ...] = ("",)  # metrics that are compared video by video, see `plan.Versus`


_OPERATIONS = (("crimson", "cholect45"),)
_FOLDS = tuple((look, "appendix300") for look in ("rose", "amber", "ivory", "violet"))
SEGMENTATION = Use(
    "fl_endovit_segmentation", Hospitals("segmentation", (("crimson", "cholecseg8k"),)), (13, 2, 2), 10, (1, 2, 4),
    resolutions=("low", "high"),
)  # fmt: skip
TRIPLETS = Use("fl_endovit_triplets", Hospitals("triplets", _OPERATIONS), (31, 5, 9), 10, (2, 4, 8))
PHASES = Use(
    "fl_endovit_phases", Hospitals("phases", _OPERATIONS, "phases"), (40, 8, 32), 15, (2, 4, 8),
    staged=True, tested=("f1", "accuracy"),
)  # fmt: skip
CLIPS = Use(
    "fl_endovit_clips", Hospitals("folds", _FOLDS), (48, 6, 12), 40,
    method="local", frames=2, quick=(6, 6), small=(6, 12),  # videos of all six grades
)  # fmt: skip


def _rows(use: Use, *, videos: Sequence[int] = (0,), frozen: Sequence[bool] = (False,)) -> Iterable[Variant]:
    """Yield the rows of a table; the label after the start is the same for all starts."""
    for fixed, count, resolution, start in product(frozen, videos, use.resolutions, STARTS):
        shots = counted(count, "video") if count else "all videos" if use.few else ""
        label = ", ".join(filter(None, (STARTS[start], shots, resolution, "frozen" * fixed)))
        network, data = {"trained_encoders": False} if fixed else {}, DataChanges(videos=count)
        row = Variant(label, use.method, bundle=use.bundle, network=network, start=start, data=data)
        yield from _stages(row) if use.staged else (row,)


def _stages(row: Variant) -> tuple[Variant, Variant]:
    """Return TeCNO's stages: frames, then sequences with the encoder that the first stage trained."""
    first = replace(row, label=f"{row.label}, S1")
    second = replace(row, label=f"{row.label}, S2", bundle=SECOND_STAGE, network={}, training={"batch_size": 1})
    return first, replace(second, after=first)


def _scales(use: Use, rows: Sequence[Variant]) -> dict[str, Scale]:
    """Return the scales; all tables of a use share them, and so they share sites and runs."""
    sites, most = len(use.hospitals.sites), max(use.few, default=use.videos[0] // 2 - 1) + 1
    tasks = {"tasks": {"classification": {"frames": use.frames}} if use.frames else {}}

    def scale(name: str, rounds: int, frames: int, size: Size, videos: Size, **training: Any) -> Scale:
        height, width = LOW[name]
        changes: dict[str, Any] = {"": {} if name == "paper" else tasks}
        for row in rows:
            changes[row.label] = dict(_BASE) if name == "paper" and row.start != RESNET else {}
            if ", high" in row.label:
                changes[row.label]["training"] = dict(zip(("height", "width"), HIGH[name], strict=True))
        split = use.videos if name == "paper" else (most, *videos)
        training, remark = {"height": height, "width": width, **training}, plan.SMOKE_TEST if name == "quick" else ""
        return Scale(rounds, training, frames, *size, (split,) * sites, remark, changes)

    return {
        "quick": scale("quick", 1, 2, (64, 96), use.quick, batch_size=2, iterations=1),
        "small": scale("small", 10, 8, (80, 128), use.small, batch_size=8, epochs=1),
        "paper": scale("paper", use.rounds, 60, (480, 854), (0, 0)),
    }


def _table(
    number: int, title: str, use: Use, layout: str = "ablation", *, baselines: Sequence[Variant] = (), **rows: Any
) -> Preset:
    variants = (*baselines, *_rows(use, **rows))
    ours, theirs = STARTS["federated"], STARTS["centralised"]
    suffixes = [row.label.removeprefix(ours) for row in variants if row.start == "federated"]
    pairs = {
        suffix.removeprefix(", ").replace("all videos", "all") or "all": (ours + suffix, theirs + suffix)
        for suffix in suffixes
    }
    return Preset(
        f"Layout of FL-EndoViT, Table {number}: {title}", variants, layout, hospitals=use.hospitals,
        remark="A site is a fold and trains separately" if use is CLIPS else "", scales=_scales(use, variants),
        versus=tuple(Versus((ours, theirs), pairs, metric) for metric in use.tested),
    )  # fmt: skip


def _few(number: int, title: str, use: Use) -> Preset:
    return _table(number, f"few-shot {title}", use, videos=(*use.few, 0))


def _frozen(title: str, use: Use) -> Preset:
    return _table(6, f"full fine-tuning and frozen backbone, {title}", use, frozen=(False, True))


DOWNSTREAM_TABLES = {
    "fl-endovit-table2": _few(2, "segmentation", SEGMENTATION),
    "fl-endovit-table3": _few(3, "action triplets", TRIPLETS),
    "fl-endovit-table4": _few(4, "phases", PHASES),
    "fl-endovit-table5": _table(5, "clips", CLIPS),
    "fl-endovit-table6-segmentation": _frozen("segmentation", SEGMENTATION),
    "fl-endovit-table6-triplets": _frozen("action triplets", TRIPLETS),
    "fl-endovit-table6-phases": _frozen("phases", PHASES),
    "fl-endovit-table10": _table(10, "clips by fold", CLIPS, "scores", baselines=[RN50]),
    "fl-endovit-table11": _table(11, "clips by class", CLIPS, "classes"),
}
