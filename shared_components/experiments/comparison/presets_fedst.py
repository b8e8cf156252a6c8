"""FedST's tables and figures (Fang et al., IEEE TMI 2026, arXiv 2506.23759, Section 4) as presets.

The paper's baselines have 19.71 MB (Table 9), which is its network without temporal layer and text, on single frames:
the rows here have it, too (`ALONE`). Where the paper has CLIP, the project's own vectors of texts stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shared_components.experiments.comparison.plan import Preset, Variant

TRAINING = {"batch_size": 2, "iterations": 100, "learning_rate": 1.0e-4, "rotation": 20.0, "flips": False}
"""Of all rows, "identical training schedules" and "rotation and scale" (Section 4.1.3); those of bundles/fedst.yaml."""
ROUNDS = 300
_LOSS = {"cross_entropy": 1.0, "log_iou": 0.0, "dice": 1.0}  # Eq. (9), as in bundles/fedst.yaml
_NO_CLIPS: dict[str, Mapping[str, Any]] = {"segmentation": {"frames": 1, "interval": 0.0}}
ALONE: dict[str, Any] = {
    "bundle": "fedst", "network": {"temporal": False, "text": "none"}, "tasks": _NO_CLIPS,
}  # fmt: skip
"""FedST's network of single frames, without temporal layer and text."""
_OTHER_NETWORK: dict[str, Any] = {"bundle": "pvt_fpn", "tasks": {"segmentation": _LOSS}}
_REMARK = (
    "FedAS aligns the features that one of two decoders reads, and so has the network of pvt_fpn, of two decoders; all "
    "other rows have FedST's"
)
_FEDST = Variant("FedST", "fedst")


def _baselines() -> tuple[Variant, ...]:
    """The rows of Tables 2, 3 and 8 in their order, without FedST."""
    return (
        Variant("Local Train", "local", **ALONE),
        Variant("Upper bound", "centralised", **ALONE),
        Variant("FedLD", "fedld", **ALONE),
        Variant("FedDP", "feddp", **ALONE),
        Variant("FedAvg", "fedavg", **ALONE),
        Variant("FedRep", "fedrep", **ALONE),
        Variant("FedAS", "fedas", **_OTHER_NETWORK),
    )


def _of(title: str, *variants: Variant, **more: Any) -> Preset:
    return Preset(f"Layout of FedST, {title}", variants, rounds=ROUNDS, training=TRAINING, **more)


def _row(label: str, ticks: tuple[bool, ...] = (), *, network: Any = None, **arguments: Any) -> Variant:
    return Variant(label, "fedst", arguments, ticks, network=network or {})


def _components() -> tuple[Variant, ...]:
    """Table 4: temporal modelling and separation (TS), the text as a prompt, or selecting channels (CS), and SERQ."""
    alone = Variant("", "fedst", {"personal": []}, (False, False, False, True), **ALONE)
    no_text, prompt = {"text": "none"}, {"text": "prompt"}
    return (
        Variant("FedDP", "feddp", {}, (False,) * 4, **ALONE),
        _row("TS", (True, False, False, False), network=no_text, synthetic="none"),
        _row("TS + Prompt", (True, True, False, False), network=prompt, synthetic="none"),
        _row("TS + Prompt + CS", (True, True, True, False), synthetic="none"),
        replace(alone, label="SERQ"),
        _row("TS + SERQ", (True, False, False, True), network=no_text),
        replace(_FEDST, ticks=(True,) * 4),
    )


def _personal(label: str, ticks: tuple[bool, ...], *parts: str, **arguments: Any) -> Variant:
    return _row(label, ticks, personal=list(parts), **arguments)


def _settings() -> tuple[Variant, ...]:
    """Table 5: ticks are personal: queries of the encoder, those of the decoder, and all else."""
    return (
        _personal("All shared", (False, False, False), personal_selection=False),
        # at the server there is nothing then that it could teach
        _personal("All personal", (True, True, True), "all", synthetic="none"),
        _personal("Decoder queries", (False, True, False), "decoder_queries"),
        _personal("Both queries", (True, True, False), "queries", "decoder_queries"),
        replace(_FEDST, ticks=(True, False, False)),
    )


def _layers() -> tuple[Variant, ...]:
    """Table 6: what of the encoder is personal."""
    kept = {"Norm": ("norms",), "Key": ("keys",), "Value": ("values",), "Key&Value": ("keys", "values")}
    return (*(_personal(name, (), *parts) for name, parts in kept.items()), replace(_FEDST, label="Ours (Query)"))


def _indicators() -> tuple[Variant, ...]:
    """Table 7: what makes the indicator; the last row is the method as it is, ours where the paper has CLIP."""
    kinds = {"Random": "random", "Gaussian": "gaussian", "One-hot": "one_hot"}
    return (*(_row(name, text_encoder=kind) for name, kind in kinds.items()), replace(_FEDST, label="Ours (text)"))


def _with_synthetic() -> tuple[Variant, ...]:
    """Figure 7: every method without the synthetic frames, and with them in every site, at twice the iterations."""
    pairs = [(row, replace(row, label=f"{row.label} + synthetic", mixes=True, times=2)) for row in _baselines()]
    ours = (_row("FedST w/o SERQ", synthetic="none"), _FEDST)
    return (*(row for pair in pairs for row in pair), *ours)


_MEASURED = ("FedAvg", "FedLD", "FedDP", "FedRep", "FedAS")


def _place(row: Variant) -> int:
    return _MEASURED.index(row.label) if row.label in _MEASURED else len(_MEASURED)


_PERSONAL = ("encoder queries", "decoder queries", "other")
_SHARES = (0.1, 0.5, 1.0, 2.0, 5.0)  # every 10, 50, 100, 200 and 500 iterations, of 100

FEDST = {
    "fedst-table2": _of("Table 2: internal validation", *_baselines(), _FEDST, remark=_REMARK),
    "fedst-table3": _of(
        "Table 3: external validation", *_baselines(), _FEDST, layout="held-out", remark=_REMARK
    ),
    "fedst-table4": _of(
        "Table 4: its components", *_components(), tick_names=("TS", "Prompt", "CS", "SERQ")
    ),
    "fedst-table5": _of("Table 5: what is personal", *_settings(), tick_names=_PERSONAL),
    "fedst-table6": _of("Table 6: what of the encoder is personal", *_layers()),
    "fedst-table7": _of("Table 7: indicators", *_indicators()),
    "fedst-table8": _of(
        "Table 8: an unseen site of binary segmentation", *_baselines(), _FEDST,
        layout="held-out", remark=_REMARK, held_out_layout="grasp",
    ),
    "fedst-table9": _of(
        "Table 9: efficiency",
        *(row for row in sorted(_baselines(), key=_place) if row.label in _MEASURED),
        _FEDST, layout="costs", remark=_REMARK,
    ),
    "fedst-figure5": _of(
        "Figure 5: three ways of using synthetic frames",
        _row("Without synthetic frames", synthetic="none"),
        _row("Fine-tuning at the server", synthetic="fine_tuning"),
        _row("SERQ, D = 0", descriptor_rate=0.0),
        replace(_FEDST, label="SERQ"),
        replace(_row("Mixed into each site", synthetic="none"), mixes=True, times=2),
        remark="where frames are mixed in, twice the iterations (ours; the paper says so of Figure 7); the first row "
        "and that without a domain descriptor are ours",
    ),
    "fedst-figure6": _of(
        "Figure 6: how often is communicated",
        *(replace(_FEDST, label="Every {iterations} iterations", share=share) for share in _SHARES),
        remark="all rows take the same iterations in all",
    ),
    "fedst-figure7": _of(
        "Figure 7: with and without synthetic frames", *_with_synthetic(), remark=_REMARK
    ),
}  # fmt: skip
