"""Define the papers' tables as presets, and change presets by command-line options.

PFedSIS: Xu et al., IEEE TBME 2025. FedST: Fang et al., IEEE TMI 2026, arXiv 2506.23759, Section 4. FedST's baselines
have 19.71 MB (Table 9): its network without temporal layer and text, on single frames (`SINGLE_FRAMES`). The paper's
CLIP texts are replaced by this project's text vectors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shared_components.core.bundle import needs_square_frames
from shared_components.core.method import load_method, method_names
from shared_components.experiments.comparison.fedsurg_presets import FEDSURG
from shared_components.experiments.comparison.fl_endovit_presets import (
    DOWNSTREAM_TABLES,
    KRUM,
    KRUM_REMARK,
    PRETRAINING_TABLES,
)
from shared_components.experiments.comparison.plan import DataChanges, Length, Preset, Scale, Variant
from shared_components.experiments.comparison.surgfed_presets import SURGFED_TABLES
from shared_components.networks.bundle_config import bundle_for

_NAMED = 5  # maximum methods in a title; more methods become a count


def _rows(methods: Mapping[str, str], **fields: Any) -> tuple[Variant, ...]:
    return tuple(Variant(label, method, **fields) for label, method in methods.items())


def _pfedsis(label: str, ticks: Sequence[bool], **arguments: Any) -> Variant:
    return Variant(label, "pfedsis", arguments, tuple(ticks))


def _personal_parts(parts: tuple[str, ...]) -> Variant:
    ticks = [part in parts for part in _ALL_PARTS]
    return _pfedsis(" + ".join(parts), ticks, ape=False, sge=False, personal=list(parts))


_ALL_PARTS = ("decoder", "q", "k", "v")
_FEDAVG = Variant("FedAvg", "fedavg")
_PFEDSIS_METHODS = _rows({
    "Local Train": "local", "FedAvg": "fedavg", "FedSeg": "fedseg", "FedRep*": "fedrep", "pFedLA*": "pfedla",
    "FedDP*": "feddp", "PFedSIS*": "pfedsis",
})  # fmt: skip
_PFEDSIS = {
    "pfedsis-table1": Preset("Layout of PFedSIS, Table I (* personalised)", _PFEDSIS_METHODS),
    "pfedsis-figure2": Preset("Layout of PFedSIS, Figure 2: frames by methods", _PFEDSIS_METHODS, layout="pictures"),
    "pfedsis-figure3": Preset(
        "Layout of PFedSIS, Figure 3: aggregation weights of the appearance head", (Variant("PFedSIS*", "pfedsis"),),
        layout="mixing",
    ),
    "pfedsis-table2": Preset(
        "Layout of PFedSIS, Table II: costs",
        (
            *_rows({"FedAvg": "fedavg", "FedSeg": "fedseg", "FedRep": "fedrep", "pFedLA": "pfedla", "FedDP": "feddp"}),
            Variant("PFedSIS w/o SGE", "pfedsis", {"sge": False}),
            Variant("PFedSIS", "pfedsis"),
        ),
        layout="costs",
    ),
    "pfedsis-table3": Preset(
        "Layout of PFedSIS, Table III: ablation of its components",
        (
            replace(_FEDAVG, ticks=(False, False, False)),
            _pfedsis("GPD", (True, False, False), ape=False, sge=False),
            _pfedsis("GPD + SGE", (True, True, False), ape=False),
            _pfedsis("GPD + APE", (True, False, True), sge=False),
            _pfedsis("PFedSIS", (True, True, True)),
        ),
        layout="ablation", tick_names=("GPD", "SGE", "APE"),
    ),
    "pfedsis-table4": Preset(
        "Layout of PFedSIS, Table IV: personal parts",
        (
            replace(_FEDAVG, ticks=(False,) * 4),
            *map(_personal_parts, (("decoder",), ("decoder", "q"), ("decoder", "k"), ("decoder", "v"), _ALL_PARTS)),
        ),
        layout="ablation", tick_names=_ALL_PARTS,
    ),
}  # fmt: skip
_FL_ENDOVIT = {
    "fl-endovit-aggregation": Preset(
        "The aggregation schemes of FL-EndoViT, Table 1, on segmentation by PFedSIS's network",
        (
            Variant("Centralised", "centralised"),
            Variant("Adaptive FedSAM", "fedsam", {"adaptive": True}),
            *_rows({"FedAvg": "fedavg", "FedMedian": "fedmedian"}),
            *(Variant(f"QFedAvg (q = {q:g})", "qfedavg", {"q": q}) for q in (2.0, 0.5)),
            Variant("FedAvgM", "fedavgm"), Variant("Multi-Krum", "multi_krum", KRUM), Variant("FedAdam", "fedadam"),
        ),
        remark=KRUM_REMARK,
    )
}  # fmt: skip

FEDST_TRAINING = {"batch_size": 2, "iterations": 100, "learning_rate": 1.0e-4, "rotation": 20.0, "flips": False}
"""Training settings of all rows (Section 4.1.3), as in bundles/fedst.yaml."""
FEDST_ROUNDS = 300
_LOSS = {"cross_entropy": 1.0, "log_iou": 0.0, "dice": 1.0}  # Eq. (9), as in bundles/fedst.yaml
SINGLE_FRAMES: dict[str, Any] = {  # FedST's network for single frames, without temporal layer and text
    "bundle": "fedst",
    "network": {"temporal": False, "text": "none"},
    "tasks": {"segmentation": {"frames": 1, "interval": 0.0}},
}
_REMARK = "FedAS needs a network with two decoders and uses pvt_fpn; all other rows use FedST's network"
_FEDST, _EVERY = Variant("FedST", "fedst"), Variant("Every {iterations} iterations", "fedst")
_BASELINES = (  # rows of Tables 2, 3 and 8 in their order, without FedST
    *_rows({"Local Train": "local", "Upper bound": "centralised", "FedLD": "fedld"}, **SINGLE_FRAMES),
    *_rows({"FedDP": "feddp", "FedAvg": "fedavg", "FedRep": "fedrep"}, **SINGLE_FRAMES),
    Variant("FedAS", "fedas", bundle="pvt_fpn", tasks={"segmentation": _LOSS}),
)
_BY_LABEL = {row.label: row for row in (*_BASELINES, _FEDST)}
_EFFICIENCY = [_BY_LABEL[label] for label in ("FedAvg", "FedLD", "FedDP", "FedRep", "FedAS", "FedST")]
_MIXED: dict[str, Any] = {"data": DataChanges(server_frames=True), "length": Length(times=2)}
_NO_TEXT, _PROMPT = {"text": "none"}, {"text": "prompt"}


def _fedst(title: str, *variants: Variant, **fields: Any) -> Preset:
    title = f"Layout of FedST, {title}"
    return Preset(title, variants, rounds=FEDST_ROUNDS, training=FEDST_TRAINING, **fields)


def _row(label: str, ticks: tuple[bool, ...] = (), *, network: Any = None, **arguments: Any) -> Variant:
    return Variant(label, "fedst", arguments, ticks, network=network or {})


def _personal(label: str, ticks: tuple[bool, ...], *parts: str, **arguments: Any) -> Variant:
    return _row(label, ticks, personal=list(parts), **arguments)


def _all_methods(title: str, **fields: Any) -> Preset:
    return _fedst(title, *_BASELINES, _FEDST, remark=_REMARK, **fields)


_FEDST_TABLES = {
    "fedst-table2": _all_methods("Table 2: internal validation"),
    "fedst-table3": _all_methods("Table 3: external validation", layout="held-out"),
    "fedst-figure3": _all_methods("Figure 3: the sites' frames by methods", layout="pictures"),
    "fedst-figure4": _all_methods("Figure 4: frames of the held-out site by methods", layout="held-out pictures"),
    "fedst-table4": _fedst(  # temporal modelling and separation, text as prompt, channel selection by text, SERQ
        "Table 4: its components",
        Variant("FedDP", "feddp", {}, (False,) * 4, **SINGLE_FRAMES),
        _row("TS", (True, False, False, False), network=_NO_TEXT, synthetic="none"),
        _row("TS + Prompt", (True, True, False, False), network=_PROMPT, synthetic="none"),
        _row("TS + Prompt + CS", (True, True, True, False), synthetic="none"),
        Variant("SERQ", "fedst", {"personal": []}, (False, False, False, True), **SINGLE_FRAMES),
        _row("TS + SERQ", (True, False, False, True), network=_NO_TEXT),
        replace(_FEDST, ticks=(True,) * 4),
        tick_names=("TS", "Prompt", "CS", "SERQ"),
    ),
    "fedst-table5": _fedst(
        "Table 5: personal layers",
        _personal("All shared", (False, False, False), personal_selection=False),
        _personal("All personal", (True, True, True), "all", synthetic="none"),  # no shared weights at the server
        _personal("Decoder queries", (False, True, False), "decoder_queries"),
        _personal("Both queries", (True, True, False), "queries", "decoder_queries"),
        replace(_FEDST, ticks=(True, False, False)),
        tick_names=("encoder queries", "decoder queries", "other"),
    ),
    "fedst-table6": _fedst(
        "Table 6: personal layers of the encoder",
        _personal("Norm", (), "norms"), _personal("Key", (), "keys"), _personal("Value", (), "values"),
        _personal("Key&Value", (), "keys", "values"), replace(_FEDST, label="Ours (Query)"),
    ),
    "fedst-table7": _fedst(  # the last row uses this project's text vectors instead of CLIP
        "Table 7: indicators",
        _row("Random", text_encoder="random"), _row("Gaussian", text_encoder="gaussian"),
        _row("One-hot", text_encoder="one_hot"), replace(_FEDST, label="Ours (text)"),
    ),
    "fedst-table8": _all_methods(
        "Table 8: held-out site with binary labels", layout="held-out", held_out_layout="grasp"
    ),
    "fedst-table9": _fedst("Table 9: efficiency", *_EFFICIENCY, layout="costs", remark=_REMARK),
    "fedst-figure5": _fedst(
        "Figure 5: three ways of using synthetic frames",
        _row("Without synthetic frames", synthetic="none"),
        _row("Fine-tuning at the server", synthetic="fine_tuning"),
        _row("SERQ, D = 0", descriptor_rate=0.0),
        replace(_FEDST, label="SERQ"),
        replace(_row("Mixed into each site", synthetic="none"), **_MIXED),
        remark="Rows with mixed frames take twice the iterations, as the paper does for Figure 7. The paper lacks the "
        "first row and the row D = 0, without a domain descriptor",
    ),
    "fedst-figure6": _fedst(  # every 10, 50, 100, 200 and 500 iterations
        "Figure 6: communication interval",
        *(replace(_EVERY, length=Length(share=share)) for share in (0.1, 0.5, 1.0, 2.0, 5.0)),
        remark="All rows take the same total of iterations",
    ),
    "fedst-figure7": _fedst(  # each baseline without and with synthetic frames at all sites
        "Figure 7: with and without synthetic frames",
        *(v for row in _BASELINES for v in (row, replace(row, label=f"{row.label} + synthetic", **_MIXED))),
        _row("FedST w/o SERQ", synthetic="none"), _FEDST,
        remark=_REMARK,
    ),
}  # fmt: skip

PRESETS = {
    **_PFEDSIS, **_FL_ENDOVIT, **PRETRAINING_TABLES, **DOWNSTREAM_TABLES, "fedsurg": FEDSURG, **_FEDST_TABLES,
    **SURGFED_TABLES,
}  # fmt: skip


def preset_named(name: str) -> Preset:
    """Return a preset, or ``all`` methods for frames of any size; raise ValueError for an unknown name."""
    if name == "all":
        return of_methods([name for name in method_names() if not needs_square_frames(bundle_for(name))])
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} does not exist; use one of {', '.join([*PRESETS, 'all'])}")
    return PRESETS[name]


def of_methods(names: Sequence[str], jobs: Mapping[str, Mapping[str, Any]] | None = None) -> Preset:
    """Return rows of methods or jobs by name, from the jobs' settings; raise ValueError for an unknown name."""
    rows = [_row_of(name, jobs or {}) for name in names]
    listed = ", ".join(row.label for row in rows) if len(rows) <= _NAMED else f"{len(rows)} methods"
    return Preset(f"Comparison of {listed}", tuple(rows))


def _row_of(name: str, jobs: Mapping[str, Mapping[str, Any]]) -> Variant:
    if name in method_names() or name not in jobs:
        return Variant(load_method(name).about.label, name)
    fields = {key: jobs[name][key] for key in ("arguments", "bundle", "network", "tasks") if key in jobs[name]}
    return Variant(name, jobs[name]["method"], **fields)


def without_server(preset: Preset) -> Preset:
    """Remove the rows that use the server's frames, and name them in the remark."""
    labels = [variant.label for variant in preset.variants if variant.needs_server]
    if not labels:
        return preset
    remark = f"Without {', '.join(labels)}: set --server to a site.yaml with the server's frames"
    rows = tuple(variant for variant in preset.variants if not variant.needs_server)
    return replace(preset, variants=rows, remark=_joined(preset.remark, remark))


def with_bundle(preset: Preset, bundle: str) -> Preset:
    """Set the bundle of rows that name none, unless it is empty; raise ValueError if each row names a bundle."""
    if not bundle:
        return preset
    if all(row.bundle for row in preset.variants):
        raise ValueError(f"--bundle is {bundle}, but each row names its bundle; compare --methods instead")
    rows = tuple(replace(row, bundle=row.bundle or bundle) for row in preset.variants)
    return replace(preset, variants=rows, remark=_joined(preset.remark, f"Bundle: {bundle}"))


def with_network(preset: Preset, network: Mapping[str, Any]) -> Preset:
    """Add network arguments, which replace a scale's but not a row's; raise ValueError if each row sets one."""
    if not network:
        return preset
    if own := [name for name in network if all(name in row.network for row in preset.variants)]:
        raise ValueError(f"--network sets {own[0]}, but each row sets it too; compare --methods instead")

    def changed(row: Variant) -> Variant:
        after = changed(row.after) if row.after else None
        return replace(row, network={**network, **row.network}, after=after)

    return replace(
        preset,
        variants=tuple(map(changed, preset.variants)),
        scales={name: _without_network(scale, network) for name, scale in preset.scales.items()},
        remark=_joined(preset.remark, f"Network: {', '.join(f'{name} = {value}' for name, value in network.items())}"),
    )


def _without_network(scale: Scale, network: Mapping[str, Any]) -> Scale:
    """Remove these network arguments from a scale; remove all for a different network class."""
    changes = {
        label: {
            name: {k: v for k, v in entries.items() if name != "network" or not {k, "class"} & set(network)}
            for name, entries in fields.items()
        }
        for label, fields in scale.changes.items()
    }
    return replace(scale, changes=changes)


def _joined(*remarks: str) -> str:
    return ". ".join(filter(None, remarks))


def with_arguments(preset: Preset, arguments: Mapping[str, Mapping[str, Any]]) -> Preset:
    """Add arguments to the rows of methods, if they lack them; raise ValueError if no row can use one."""
    if unused := sorted(set(arguments) - {variant.method for variant in preset.variants}):
        raise ValueError(f"--argument sets an argument of {unused[0]!r}, which is not compared; leave it out")
    for method, values in arguments.items():
        rows = [variant.arguments for variant in preset.variants if variant.method == method]
        if own := [name for name in values if all(name in row for row in rows)]:
            raise ValueError(
                f"--argument sets {method}.{own[0]}, but each row of {method} sets it too; compare --methods {method}"
            )
    changed = [replace(v, arguments={**arguments.get(v.method, {}), **v.arguments}) for v in preset.variants]
    return replace(preset, variants=tuple(changed))
