"""The papers' tables as presets, and rows of methods by name.

PFedSIS: Xu et al., IEEE TBME 2025. FedST: Fang et al., IEEE TMI 2026, arXiv 2506.23759, Section 4. FedST's baselines
have 19.71 MB (Table 9), which is its network without temporal layer and text, on single frames: the rows here have it,
too (`ALONE`). Where the paper has CLIP, the project's own vectors of texts stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shared_components.core.bundle import needs_square_frames
from shared_components.core.method import load_method, method_names
from shared_components.experiments.comparison.fedsurg_presets import FEDSURG
from shared_components.experiments.comparison.fl_endovit_downstream import DOWNSTREAM_TABLES
from shared_components.experiments.comparison.fl_endovit_presets import KRUM, KRUM_REMARK, PRETRAINING_TABLES
from shared_components.experiments.comparison.plan import DataChanges, Length, Preset, Scale, Variant
from shared_components.experiments.comparison.surgfed_presets import SURGFED_TABLES
from shared_components.networks.bundle_config import bundle_for

_NAMED = 5  # methods that a title lists; more are counted


def _rows(methods: Mapping[str, str], **more: Any) -> tuple[Variant, ...]:
    """Return a row per label with the method's default arguments."""
    return tuple(Variant(label, method, **more) for label, method in methods.items())


def _pfedsis(label: str, ticks: Sequence[bool], **arguments: Any) -> Variant:
    return Variant(label, "pfedsis", arguments, tuple(ticks))


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
        "Layout of PFedSIS, Figure 3: aggregation weights of the appearance head",
        (Variant("PFedSIS*", "pfedsis"),),
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
        layout="ablation",
        tick_names=("GPD", "SGE", "APE"),
    ),
    "pfedsis-table4": Preset(
        "Layout of PFedSIS, Table IV: personal parts",
        (
            replace(_FEDAVG, ticks=(False,) * 4),
            *(
                _pfedsis(
                    " + ".join(parts), [p in parts for p in _ALL_PARTS], ape=False, sge=False, personal=list(parts)
                )
                for parts in (("decoder",), ("decoder", "q"), ("decoder", "k"), ("decoder", "v"), _ALL_PARTS)
            ),
        ),
        layout="ablation",
        tick_names=_ALL_PARTS,
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
            Variant("FedAvgM", "fedavgm"),
            Variant("Multi-Krum", "multi_krum", KRUM),
            Variant("FedAdam", "fedadam"),
        ),
        remark=KRUM_REMARK,
    )
}

FEDST_TRAINING = {"batch_size": 2, "iterations": 100, "learning_rate": 1.0e-4, "rotation": 20.0, "flips": False}
"""Of all rows, "identical training schedules" and "rotation and scale" (Section 4.1.3); those of bundles/fedst.yaml."""
FEDST_ROUNDS = 300
_LOSS = {"cross_entropy": 1.0, "log_iou": 0.0, "dice": 1.0}  # Eq. (9), as in bundles/fedst.yaml
_NO_CLIPS: dict[str, Mapping[str, Any]] = {"segmentation": {"frames": 1, "interval": 0.0}}
ALONE: dict[str, Any] = {"bundle": "fedst", "network": {"temporal": False, "text": "none"}, "tasks": _NO_CLIPS}
"""FedST's network of single frames, without temporal layer and text."""
_REMARK = (
    "FedAS aligns the features that one of two decoders reads, and so has the network of pvt_fpn, of two decoders; all "
    "other rows have FedST's"
)
_FEDST = Variant("FedST", "fedst")
_BASELINES = (  # the rows of Tables 2, 3 and 8 in their order, without FedST
    *_rows({"Local Train": "local", "Upper bound": "centralised", "FedLD": "fedld"}, **ALONE),
    *_rows({"FedDP": "feddp", "FedAvg": "fedavg", "FedRep": "fedrep"}, **ALONE),
    Variant("FedAS", "fedas", bundle="pvt_fpn", tasks={"segmentation": _LOSS}),
)
_BY_LABEL = {row.label: row for row in (*_BASELINES, _FEDST)}


def _of(title: str, *variants: Variant, **more: Any) -> Preset:
    return Preset(f"Layout of FedST, {title}", variants, rounds=FEDST_ROUNDS, training=FEDST_TRAINING, **more)


def _row(label: str, ticks: tuple[bool, ...] = (), *, network: Any = None, **arguments: Any) -> Variant:
    return Variant(label, "fedst", arguments, ticks, network=network or {})


def _personal(label: str, ticks: tuple[bool, ...], *parts: str, **arguments: Any) -> Variant:
    return _row(label, ticks, personal=list(parts), **arguments)


_MIXED: dict[str, Any] = {"data": DataChanges(server_frames=True), "length": Length(times=2)}
_NO_TEXT, _PROMPT = {"text": "none"}, {"text": "prompt"}
_FEDST_TABLES = {
    "fedst-table2": _of("Table 2: internal validation", *_BASELINES, _FEDST, remark=_REMARK),
    "fedst-table3": _of("Table 3: external validation", *_BASELINES, _FEDST, layout="held-out", remark=_REMARK),
    "fedst-figure3": _of(
        "Figure 3: the sites' frames by methods", *_BASELINES, _FEDST, layout="pictures", remark=_REMARK
    ),
    "fedst-figure4": _of(
        "Figure 4: frames of the held-out site by methods", *_BASELINES, _FEDST,
        layout="held-out pictures", remark=_REMARK,
    ),
    "fedst-table4": _of(  # temporal modelling and separation, the text as a prompt, or selecting channels, and SERQ
        "Table 4: its components",
        Variant("FedDP", "feddp", {}, (False,) * 4, **ALONE),
        _row("TS", (True, False, False, False), network=_NO_TEXT, synthetic="none"),
        _row("TS + Prompt", (True, True, False, False), network=_PROMPT, synthetic="none"),
        _row("TS + Prompt + CS", (True, True, True, False), synthetic="none"),
        Variant("SERQ", "fedst", {"personal": []}, (False, False, False, True), **ALONE),
        _row("TS + SERQ", (True, False, False, True), network=_NO_TEXT),
        replace(_FEDST, ticks=(True,) * 4),
        tick_names=("TS", "Prompt", "CS", "SERQ"),
    ),
    "fedst-table5": _of(
        "Table 5: personal layers",
        _personal("All shared", (False, False, False), personal_selection=False),
        # at the server there is nothing then that it could teach
        _personal("All personal", (True, True, True), "all", synthetic="none"),
        _personal("Decoder queries", (False, True, False), "decoder_queries"),
        _personal("Both queries", (True, True, False), "queries", "decoder_queries"),
        replace(_FEDST, ticks=(True, False, False)),
        tick_names=("encoder queries", "decoder queries", "other"),
    ),
    "fedst-table6": _of(
        "Table 6: personal layers of the encoder",
        _personal("Norm", (), "norms"),
        _personal("Key", (), "keys"),
        _personal("Value", (), "values"),
        _personal("Key&Value", (), "keys", "values"),
        replace(_FEDST, label="Ours (Query)"),
    ),
    "fedst-table7": _of(  # the last row is the method as it is: our texts' vectors, where the paper has CLIP
        "Table 7: indicators",
        _row("Random", text_encoder="random"),
        _row("Gaussian", text_encoder="gaussian"),
        _row("One-hot", text_encoder="one_hot"),
        replace(_FEDST, label="Ours (text)"),
    ),
    "fedst-table8": _of(
        "Table 8: held-out site with binary labels", *_BASELINES, _FEDST,
        layout="held-out", remark=_REMARK, held_out_layout="grasp",
    ),
    "fedst-table9": _of(
        "Table 9: efficiency",
        *(_BY_LABEL[label] for label in ("FedAvg", "FedLD", "FedDP", "FedRep", "FedAS", "FedST")),
        layout="costs", remark=_REMARK,
    ),
    "fedst-figure5": _of(
        "Figure 5: three ways of using synthetic frames",
        _row("Without synthetic frames", synthetic="none"),
        _row("Fine-tuning at the server", synthetic="fine_tuning"),
        _row("SERQ, D = 0", descriptor_rate=0.0),
        replace(_FEDST, label="SERQ"),
        replace(_row("Mixed into each site", synthetic="none"), **_MIXED),
        remark="where frames are mixed in, twice the iterations (ours; the paper says so of Figure 7); the first row "
        "and that without a domain descriptor are ours",
    ),
    "fedst-figure6": _of(  # every 10, 50, 100, 200 and 500 iterations, of 100
        "Figure 6: communication interval",
        *(
            replace(_FEDST, label="Every {iterations} iterations", length=Length(share=share))
            for share in (0.1, 0.5, 1.0, 2.0, 5.0)
        ),
        remark="all rows take the same iterations in all",
    ),
    "fedst-figure7": _of(  # each baseline without the synthetic frames, then with them in every site
        "Figure 7: with and without synthetic frames",
        *(
            variant
            for row in _BASELINES
            for variant in (row, replace(row, label=f"{row.label} + synthetic", **_MIXED))
        ),
        _row("FedST w/o SERQ", synthetic="none"),
        _FEDST,
        remark=_REMARK,
    ),
}  # fmt: skip

PRESETS = {
    **_PFEDSIS, **_FL_ENDOVIT, **PRETRAINING_TABLES, **DOWNSTREAM_TABLES, "fedsurg": FEDSURG, **_FEDST_TABLES,
    **SURGFED_TABLES,
}  # fmt: skip


def preset_named(name: str) -> Preset:
    """Return a paper's table, or ``all``: every method that runs on frames of any size, with its default arguments.

    Raises:
        ValueError: It does not exist; the sentence lists those that do.
    """
    if name == "all":
        return of_methods([name for name in method_names() if not needs_square_frames(bundle_for(name))])
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} does not exist; there are {', '.join([*PRESETS, 'all'])}")
    return PRESETS[name]


def of_methods(names: Sequence[str], jobs: Mapping[str, Mapping[str, Any]] | None = None) -> Preset:
    """Return a table of methods by file name, with their default arguments; its title says which, or how many.

    A name that only a job has is a row with the job's method, arguments, bundle, network and tasks. ``jobs`` are the
    settings of the jobs by name.

    Raises:
        ValueError: A name belongs to no method and to no job.
    """
    rows = [_row_of(name, jobs or {}) for name in names]
    listed = ", ".join(row.label for row in rows) if len(rows) <= _NAMED else f"{len(rows)} methods"
    return Preset(f"Comparison of {listed}", tuple(rows))


def _row_of(name: str, jobs: Mapping[str, Mapping[str, Any]]) -> Variant:
    if name in method_names() or name not in jobs:
        return Variant(load_method(name).about.label, name)
    own = {key: jobs[name][key] for key in ("arguments", "bundle", "network", "tasks") if key in jobs[name]}
    return Variant(name, jobs[name]["method"], **own)


def without_server(preset: Preset) -> Preset:
    """Return the table without the rows that use frames of the server's own, and say so below it."""
    left = [variant.label for variant in preset.variants if variant.needs_server]
    if not left:
        return preset
    uses = "uses" if len(left) == 1 else "use"
    remark = f"without {', '.join(left)}, which {uses} frames of the server's own; name their site.yaml by --server"
    kept = tuple(variant for variant in preset.variants if not variant.needs_server)
    return replace(preset, variants=kept, remark=_joined(preset.remark, remark))


def with_bundle(preset: Preset, bundle: str) -> Preset:
    """Return the table with another bundle in the rows that name none; empty: as it is.

    Raises:
        ValueError: Every row names its own.
    """
    if not bundle:
        return preset
    if all(row.bundle for row in preset.variants):
        raise ValueError(f"--bundle is {bundle}, and each row names its own bundle; compare --methods instead")
    rows = tuple(replace(row, bundle=row.bundle or bundle) for row in preset.variants)
    return replace(preset, variants=rows, remark=_joined(preset.remark, f"bundle: {bundle}"))


def with_network(preset: Preset, network: Mapping[str, Any]) -> Preset:
    """Return the table with arguments of the network in all rows; a row's own take precedence, a scale's do not.

    Raises:
        ValueError: Every row sets such an argument itself.
    """
    if not network:
        return preset
    if own := [name for name in network if all(name in row.network for row in preset.variants)]:
        raise ValueError(f"--network gives {own[0]}, which each row sets itself; compare --methods instead")

    def changed(row: Variant) -> Variant:
        after = changed(row.after) if row.after else None
        return replace(row, network={**network, **row.network}, after=after)

    listed = ", ".join(f"{name} = {value}" for name, value in network.items())
    return replace(
        preset,
        variants=tuple(map(changed, preset.variants)),
        scales={name: _without_network(scale, network) for name, scale in preset.scales.items()},
        remark=_joined(preset.remark, f"network: {listed}"),
    )


def _without_network(scale: Scale, network: Mapping[str, Any]) -> Scale:
    """Return a scale that leaves some arguments of the network to the rows; all of them where its class is another."""
    left = {
        label: {
            name: {k: v for k, v in entries.items() if name != "network" or not {k, "class"} & set(network)}
            for name, entries in fields.items()
        }
        for label, fields in scale.changes.items()
    }
    return replace(scale, changes=left)


def _joined(*remarks: str) -> str:
    return "; ".join(text for text in remarks if text)


def with_arguments(preset: Preset, arguments: Mapping[str, Mapping[str, Any]]) -> Preset:
    """Return the table with arguments of methods added to the rows of that method; a row's own take precedence.

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
