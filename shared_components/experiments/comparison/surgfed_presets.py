"""SurgFed's tables and figures: Fang et al., arXiv 2603.09496, Section IV.

All rows have its network, whose image and prompt encoders are fixed. Baselines have it without the text, and keep the
depth head at the site, which is what sites of differing tasks cannot share. Every preset has local training, which
Eq. (9) is relative to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shared_components.experiments.comparison.plan import SMOKE_TEST, Hospitals, Preset, Scale, Variant

MEMORY, DECODER, HEAD = ("memory_attention", "memory_encoder", "object_pointer"), ("mask_decoder",), ("depth_head",)
HOSPITALS = Hospitals(
    "surgfed",
    (
        ("narrowband", "endovis2017"), ("crimson", "endovis2018_scene"), ("fluorescence", "autolaparo"),
        ("ivory", "scared"), ("fibrescope", "stereomis"),
    ),
)  # fmt: skip
"""The paper's five data sets, in looks that the shipped weights have not learnt from."""
_CACHED = {"batch_size": 2, "flips": False, "crops": False, "feature_cache_gb": 1.0}
_VIDEOS = ((2, 1, 1),) * len(HOSPITALS.sites)
SURGFED_SCALES = {
    "quick": Scale(
        1, {"height": 64, "width": 64, "learning_rate": 5e-4, "iterations": 2, **_CACHED}, 4, 96, 128, _VIDEOS,
        SMOKE_TEST,
    ),
    "small": Scale(
        3, {"height": 96, "width": 96, "learning_rate": 5e-4, "iterations": 24, **_CACHED}, 6, 128, 160, _VIDEOS
    ),
    "paper": Scale(
        100, {}, 60, 1024, 1280, ((8, 1, 2),) * len(HOSPITALS.sites),
        changes={"": {"network": {"architecture": "small", "size": 512}}},
        weights="SAM 2.1's published weights of size small, such as sam2.1_hiera_small.pt",
    ),
}  # fmt: skip
"""At ``paper`` the paper's SAM2 small, and the bundle's 512 x 512, 3 epochs of single clips and 1e-4, with 100 rounds
(Section IV-A)."""

_NO_TEXT, _PROMPT = {"text": "none"}, {"text": "prompt"}


def _baseline(label: str, method: str, **more: Any) -> Variant:
    return Variant(label, method, bundle="surgfed", network=_NO_TEXT, **more)


def _row(
    label: str, ticks: tuple[bool, ...] = (), *, lcs: bool = True, fixed: tuple[str, ...] = (), **arguments: Any
) -> Variant:
    training = {"fixed": list(fixed)} if fixed else {}
    return Variant(label, "surgfed", arguments, ticks, network={} if lcs else _NO_TEXT, training=training)


_LOCAL = _baseline("Local Train", "local")
_FEDAVG = _baseline("FedAvg", "fedavg", arguments={"personal": list(HEAD)})
_SURGFED = Variant("SurgFed", "surgfed")
_METHODS = (
    _baseline("Inference Only", "local", trains=False),
    _LOCAL,
    _FEDAVG,
    _baseline("FedAvg + Cluster", "fedavg_cluster", arguments={"group": "kind"}),
    _baseline("FedRep", "fedrep", arguments={"personal": [*DECODER, *HEAD]}),
    _baseline("FedProx", "fedprox", arguments={"personal": list(HEAD)}),
    _baseline("MaT-FL", "mat_fl", arguments={"shared": list(MEMORY)}),
    _baseline("FedHCA2", "fedhca2", arguments={"encoder": list(MEMORY), "decoders": list(DECODER)}),
)
_FROZEN = _baseline("Decoder alone, local", "local", training={"fixed": list(MEMORY)})
_FORMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SurgFed", {}),
    ("SurgFed w/o LCS", {"lcs": False}),
    ("SurgFed w/o LHA", {"lha": False}),
)
_SEVERAL = {"": (), " (Dec)": MEMORY, " (Mem)": DECODER}  # what of decoder and memory does not train


def _of(title: str, *variants: Variant, layout: str = "delta", **more: Any) -> Preset:
    return Preset(f"Layout of SurgFed, {title}", variants, layout, hospitals=HOSPITALS, scales=SURGFED_SCALES, **more)


def _indicators(of: str, argument: str, **other: Any) -> tuple[Variant, ...]:
    """Return the rows of an indicator of LCS or LHA, where the other has the site's text."""
    kinds: tuple[tuple[str, Any], ...] = (("Random", "random"), ("One-hot", "one_hot"))
    return tuple(_row(f"{label} of {of}", **{**other, argument: kind}) for label, kind in kinds)


def _aggregated(what: str) -> tuple[Variant, ...]:
    return tuple(_row(f"{label}, {what} aggregated", aggregated=what, **of) for label, of in _FORMS)


SURGFED_TABLES = {
    "surgfed-table1": _of("Table I: methods on one backbone", *_METHODS, _FROZEN, _SURGFED),
    "surgfed-table2": _of(
        "Table II: its components, and controls",
        replace(_LOCAL, ticks=(False,) * 3),
        replace(_FEDAVG, ticks=(False,) * 3),
        _row("SurgFed w/o LHA", (True, False, False), lha=False),
        _row("SurgFed w/o LCS", (False, True, False), lcs=False),
        Variant("SurgFed w/o LCS + Prompt", "surgfed", ticks=(False, True, True), network=_PROMPT),
        replace(_SURGFED, ticks=(True, True, False)),
        _row("SurgFed w/o LHA (Mem)", (True, False, False), fixed=DECODER, lha=False),
        _row("Control: psi = 0", (True, False, False), psi=0.0, hyper_rate=0.0),
        _row("Control: uniform mean", (True, True, False), attention="mean"),
        _row("Control: shuffled texts", (True, True, False), texts="shuffled"),
        _row("Control: no text in LHA", (True, True, False), texts="none"),
        tick_names=("LCS", "LHA", "Prompt"),
        remark="Prompt: the text enters the network without channel selection; LHA reads the sites' texts unless a row "
        "names others; the paper's row 2 has the values of (Mem), which trains only the memory modules; the controls "
        "are ours: psi = 0 follows nobody",
    ),
    "surgfed-table3": _of(
        "Table III: indicators of LCS", _LOCAL,
        *_indicators("LCS", "text_encoder", lha_encoder="precomputed"), _SURGFED,
    ),
    "surgfed-table4": _of("Table IV: indicators of LHA", _LOCAL, *_indicators("LHA", "lha_encoder"), _SURGFED),
    "surgfed-figure3": _of(
        "Figure 3: fine-tuned modules",
        _LOCAL,
        *(
            _row(f"{label}{parts}", fixed=fixed, **of)
            for label, of in _FORMS
            for parts, fixed in _SEVERAL.items()
        ),
        remark="(Dec), (Mem): the mask decoder or the memory modules alone are trained, else both",
    ),
    "surgfed-figure3-aggregated": _of(
        "Figure 3: aggregated modules (the released code's switch)",
        _LOCAL,
        *_aggregated("decoder"),
        *_aggregated("memory"),
        _SURGFED,
        remark="memory modules and mask decoder are trained in all rows; what is not aggregated stays at the site",
    ),
    "surgfed-figure4": _of("Figure 4: five sites by methods", *_METHODS, _SURGFED, layout="pictures"),
    "surgfed-efficiency": _of(
        "efficiency", *(row for row in _METHODS if row.trains), _SURGFED, layout="costs"
    ),
}  # fmt: skip
