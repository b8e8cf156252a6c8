"""The papers' tables as presets, and rows of methods by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shared_components.core.method import load_method, method_names
from shared_components.experiments.comparison.plan import Preset, Variant
from shared_components.experiments.comparison.presets_fedst import FEDST


def _pfedsis(label: str, ticks: Sequence[bool], **arguments: Any) -> Variant:
    return Variant(label, "pfedsis", arguments, tuple(ticks))


def _personal(*parts: str) -> dict[str, Any]:
    return {"ape": False, "sge": False, "personal": list(parts)}


_ALL_PARTS = ("decoder", "q", "k", "v")
_NAMED = 5  # methods that a title lists; more are counted
_FEDAVG, _PFEDSIS = Variant("FedAvg", "fedavg"), Variant("PFedSIS", "pfedsis")

PRESETS = {
    "pfedsis-table1": Preset(
        "Layout of PFedSIS, Table I (* personalised)",
        (
            Variant("Local Train", "local"),
            _FEDAVG,
            Variant("FedSeg", "fedseg"),
            Variant("FedRep*", "fedrep"),
            Variant("pFedLA*", "pfedla"),
            Variant("FedDP*", "feddp"),
            Variant("PFedSIS*", "pfedsis"),
        ),
    ),
    "pfedsis-table2": Preset(
        "Layout of PFedSIS, Table II",
        (
            _FEDAVG,
            Variant("FedSeg", "fedseg"),
            Variant("FedRep", "fedrep"),
            Variant("pFedLA", "pfedla"),
            Variant("FedDP", "feddp"),
            Variant("PFedSIS w/o SGE", "pfedsis", {"sge": False}),
            _PFEDSIS,
        ),
        layout="costs",
    ),
    "pfedsis-table3": Preset(
        "Layout of PFedSIS, Table III: ablation of its components",
        (
            Variant("FedAvg", "fedavg", {}, (False, False, False)),
            _pfedsis("GPD", (True, False, False), ape=False, sge=False),
            _pfedsis("GPD + SGE", (True, True, False), ape=False),
            _pfedsis("GPD + APE", (True, False, True), sge=False),
            _pfedsis("PFedSIS", (True, True, True)),
        ),
        layout="ablation",
        tick_names=("GPD", "SGE", "APE"),
    ),
    "pfedsis-table4": Preset(
        "Layout of PFedSIS, Table IV: what is personal",
        (
            Variant("FedAvg", "fedavg", {}, (False,) * 4),
            *(
                _pfedsis(
                    " + ".join(parts), [p in parts for p in _ALL_PARTS], **_personal(*parts)
                )
                for parts in (("decoder",), ("decoder", "q"), ("decoder", "k"), ("decoder", "v"), _ALL_PARTS)
            ),
        ),
        layout="ablation",
        tick_names=_ALL_PARTS,
    ),
    "fl-endovit-aggregation": Preset(
        "The aggregation schemes of FL-EndoViT, Table 1, on segmentation",
        (
            Variant("Centralised", "centralised"),
            Variant("Adaptive FedSAM", "fedsam", {"adaptive": True}),
            _FEDAVG,
            Variant("FedMedian", "fedmedian"),
            Variant("QFedAvg (q = 2)", "qfedavg", {"q": 2.0}),
            Variant("QFedAvg (q = 0.5)", "qfedavg", {"q": 0.5}),
            Variant("FedAvgM", "fedavgm"),
            Variant("Krum", "krum"),
            Variant("FedAdam", "fedadam"),
        ),
    ),
    **FEDST,
}  # fmt: skip


def preset_named(name: str) -> Preset:
    """Return a paper's table, or ``all``: every method with its default arguments.

    Raises:
        ValueError: It does not exist; the sentence lists those that do.
    """
    if name == "all":
        return of_methods(method_names())
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} does not exist; there are {', '.join([*PRESETS, 'all'])}")
    return PRESETS[name]


def of_methods(names: Sequence[str]) -> Preset:
    """Return a table of methods by file name, with their default arguments; its title says which, or how many.

    Raises:
        ValueError: A method does not exist.
    """
    labels = [load_method(name).about.label for name in names]
    listed = ", ".join(labels) if len(labels) <= _NAMED else f"{len(labels)} methods"
    return Preset(f"Comparison of {listed}", tuple(map(Variant, labels, names)))


def without_server(preset: Preset) -> Preset:
    """Return the table without the rows that use frames of the server's own, and say so below it."""
    left = [variant.label for variant in preset.variants if variant.needs_server]
    if not left:
        return preset
    uses = "uses" if len(left) == 1 else "use"
    remark = f"without {', '.join(left)}, which {uses} frames of the server's own; name their site.yaml by --server"
    kept = tuple(variant for variant in preset.variants if not variant.needs_server)
    return replace(preset, variants=kept, remark="; ".join(text for text in (preset.remark, remark) if text))


def with_arguments(preset: Preset, arguments: Mapping[str, Mapping[str, Any]]) -> Preset:
    """Return the table with arguments of methods added to the rows of that method; what a row says itself stays.

    Raises:
        ValueError: No row has a method that is named, or every row of it says that argument itself.
    """
    if unused := sorted(set(arguments) - {variant.method for variant in preset.variants}):
        raise ValueError(f"an argument is given for {unused[0]!r}, which is not compared")
    for method, given in arguments.items():
        rows = [variant.arguments for variant in preset.variants if variant.method == method]
        if own := [name for name in given if all(name in row for row in rows)]:
            raise ValueError(
                f"--argument gives {method}.{own[0]}, which each of its rows says itself; compare --methods {method}"
            )
    changed = (
        replace(variant, arguments={**arguments.get(variant.method, {}), **variant.arguments})
        for variant in preset.variants
    )
    return replace(preset, variants=tuple(changed))
