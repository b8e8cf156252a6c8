"""SurgFed's tables and figures: Fang et al., arXiv 2603.09496, Section IV.

All rows use its network with frozen image and prompt encoders. Baselines use it without text and keep the depth head
local, since sites with different tasks cannot share it. Each preset includes local training, the baseline of Eq. (9).
"""

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
"""The paper's five data sets, with looks that are not in the training data of the shipped weights."""
_CACHED = {"learning_rate": 5e-4, "batch_size": 2, "flips": False, "crops": False, "feature_cache_gb": 1.0}
_VIDEOS = ((2, 1, 1),) * len(HOSPITALS.sites)
SURGFED_SCALES = {
    "quick": Scale(1, {"height": 64, "width": 64, "iterations": 2, **_CACHED}, 4, 96, 128, _VIDEOS, SMOKE_TEST),
    "small": Scale(3, {"height": 96, "width": 96, "iterations": 24, **_CACHED}, 6, 128, 160, _VIDEOS),
    "paper": Scale(
        100, {}, 60, 1024, 1280, ((8, 1, 2),) * len(HOSPITALS.sites),
        changes={"": {"network": {"architecture": "small", "size": 512}}},
        weights="SAM 2.1's published weights of size small, such as sam2.1_hiera_small.pt",
    ),
}  # fmt: skip
"""``paper``: SAM2 small and the bundle's 512 x 512, 3 epochs of single clips and learning rate 1e-4, with 100 rounds
(Section IV-A)."""

_NO_TEXT, _PROMPT = {"text": "none"}, {"text": "prompt"}
_NO_TICKS, _LCS, _LHA, _BOTH = (False,) * 3, (True, False, False), (False, True, False), (True, True, False)


def _baseline(label: str, method: str, **fields: Any) -> Variant:
    return Variant(label, method, bundle="surgfed", network=_NO_TEXT, **fields)


def _row(
    label: str, ticks: tuple[bool, ...] = (), *, lcs: bool = True, fixed: tuple[str, ...] = (), **arguments: Any
) -> Variant:
    training = {"fixed": list(fixed)} if fixed else {}
    return Variant(label, "surgfed", arguments, ticks, network={} if lcs else _NO_TEXT, training=training)


_LOCAL = _baseline("Local Train", "local")
_FEDAVG = _baseline("FedAvg", "fedavg", arguments={"personal": list(HEAD)})
_SURGFED = Variant("SurgFed", "surgfed")
_METHODS = (
    _baseline("Inference Only", "local", trains=False), _LOCAL, _FEDAVG,
    _baseline("FedAvg + Cluster", "fedavg_cluster", arguments={"group": "kind"}),
    _baseline("FedRep", "fedrep", arguments={"personal": [*DECODER, *HEAD]}),
    _baseline("FedProx", "fedprox", arguments={"personal": list(HEAD)}),
    _baseline("MaT-FL", "mat_fl", arguments={"shared": list(MEMORY)}),
    _baseline("FedHCA2", "fedhca2", arguments={"encoder": list(MEMORY), "decoders": list(DECODER)}),
)  # fmt: skip
_FROZEN = _baseline("Decoder alone, local", "local", training={"fixed": list(MEMORY)})
_FORMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SurgFed", {}), ("SurgFed w/o LCS", {"lcs": False}), ("SurgFed w/o LHA", {"lha": False})
)  # fmt: skip
_FIXED_PARTS = {"": (), " (Dec)": MEMORY, " (Mem)": DECODER}


def _preset(title: str, *variants: Variant, layout: str = "delta", **fields: Any) -> Preset:
    title = f"Layout of SurgFed, {title}"
    return Preset(title, variants, layout, hospitals=HOSPITALS, scales=SURGFED_SCALES, **fields)


def _indicators(module: str, argument: str, **arguments: Any) -> tuple[Variant, ...]:
    """Return rows with other indicators in LCS or LHA; the other module keeps the site's text."""
    kinds: tuple[tuple[str, Any], ...] = (("Random", "random"), ("One-hot", "one_hot"))
    return tuple(_row(f"{label} of {module}", **{**arguments, argument: kind}) for label, kind in kinds)


SURGFED_TABLES = {
    "surgfed-table1": _preset("Table I: methods on one backbone", *_METHODS, _FROZEN, _SURGFED),
    "surgfed-table2": _preset(
        "Table II: its components, and controls",
        replace(_LOCAL, ticks=_NO_TICKS), replace(_FEDAVG, ticks=_NO_TICKS),
        _row("SurgFed w/o LHA", _LCS, lha=False), _row("SurgFed w/o LCS", _LHA, lcs=False),
        Variant("SurgFed w/o LCS + Prompt", "surgfed", ticks=(False, True, True), network=_PROMPT),
        replace(_SURGFED, ticks=_BOTH),
        _row("SurgFed w/o LHA (Mem)", _LCS, fixed=DECODER, lha=False),
        _row("Control: psi = 0", _LCS, psi=0.0, hyper_rate=0.0),
        _row("Control: uniform mean", _BOTH, attention="mean"),
        _row("Control: shuffled texts", _BOTH, texts="shuffled"),
        _row("Control: no text in LHA", _BOTH, texts="none"),
        tick_names=("LCS", "LHA", "Prompt"),
        remark="Prompt: the text enters the network without channel selection. LHA reads the sites' texts unless a row "
        "names others. (Mem) trains only the memory modules and has the values of the paper's row 2. The paper has "
        "no controls; psi = 0 follows no other site",
    ),
    "surgfed-table3": _preset(
        "Table III: indicators of LCS", _LOCAL,
        *_indicators("LCS", "text_encoder", lha_encoder="precomputed"), _SURGFED,
    ),
    "surgfed-table4": _preset("Table IV: indicators of LHA", _LOCAL, *_indicators("LHA", "lha_encoder"), _SURGFED),
    "surgfed-figure3": _preset(
        "Figure 3: fine-tuned modules", _LOCAL,
        *(
            _row(f"{label}{parts}", fixed=fixed, **fields)
            for label, fields in _FORMS for parts, fixed in _FIXED_PARTS.items()
        ),
        remark="(Dec), (Mem): only the mask decoder or only the memory modules are trained",
    ),
    "surgfed-figure3-aggregated": _preset(
        "Figure 3: aggregated modules (the released code's switch)", _LOCAL,
        *(
            _row(f"{label}, {part} aggregated", aggregated=part, **fields)
            for part in ("decoder", "memory") for label, fields in _FORMS
        ),
        _SURGFED,
        remark="All rows train memory modules and mask decoder; modules that are not aggregated stay at the site",
    ),
    "surgfed-figure4": _preset("Figure 4: five sites by methods", *_METHODS, _SURGFED, layout="pictures"),
    "surgfed-efficiency": _preset("efficiency", *(r for r in _METHODS if r.trains), _SURGFED, layout="costs"),
}  # fmt: skip
