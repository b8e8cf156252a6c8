"""Methods and attacks of the robustness table, and its Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from evidence.attacks.replies import Attack, inflated, inner_product, mimic, noise, sign_flip
from shared_components.core.method import load_method

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "norm_bound": {},
    "fedmedian": {},
    "trimmed_mean": {"trim": 1},
    "krum": {"faults": 1},
    "multi_krum": {"faults": 1},
    "fedper": {},
    "pfedla": {},
    "fedhca2": {},
    "pfedsis": {"sensitivity_images": 4},
}


@dataclass(frozen=True)
class Case:
    """One attack of the table; ``flip``: the attacker flips its labels instead of changing its reply."""

    label: str
    attack: Attack | None = None
    flip: bool = False
    only: str = ""  # only for this method; empty: any


CASES: dict[str, Case] = {
    "none": Case("nobody attacks"),
    "sign_flip": Case("sign flip, 10 times", sign_flip(times=10)),
    "label_flip": Case("label flip", flip=True),
    "noise": Case("noise, 100 times", noise(times=100)),
    "inner_product_large": Case("inner product, ε = 10", inner_product(epsilon=10)),
    "inner_product_small": Case("inner product, ε = 0.5", inner_product(epsilon=0.5)),
    "mimic": Case("mimic", mimic()),
    "sensitivity": Case("sensitivity × 50", inflated(times=50), only="pfedsis"),
    "sensitivity_cap": Case(
        "sensitivity at 99 times the others' everywhere", inflated(times=99, everywhere=True), only="pfedsis"
    ),
    "sensitivity_sign": Case(
        "the same, and sign flip once",
        inflated(times=99, everywhere=True, with_pieces=sign_flip(times=1)),
        only="pfedsis",
    ),
}
BEYOND: dict[str, Case] = {  # attacks that the server's checks should refuse; only for the last method
    "sign_flip": Case("sign flip, 10,000 times", sign_flip(times=1e4)),
    "noise": Case("noise, 1e39 times", noise(times=1e39)),
    "sensitivity": Case("sensitivity × 1000", inflated(times=1e3)),
    "sensitivity_cap": Case("sensitivity at 1e12 everywhere", inflated(times=1e12, everywhere=True)),
}


def tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return Markdown: mean Dice and its drop, the worst honest site's Dice, and refused updates."""
    columns = [key for key in CASES if any(row["case"] == key for row in rows) and not CASES[key].only]
    head = "| Method | " + " | ".join(CASES[key].label for key in columns) + " |"
    line = "| --- |" + " ---: |" * len(columns)
    parts = [head, line]
    methods = [name for name in METHODS if any(row["method"] == name for row in rows)]
    parts += [
        f"| {load_method(name).about.label} | " + " | ".join(_cells(rows, name, columns, mean)) + " |"
        for name in methods
    ]
    parts += ["", "The worst of the four honest sites:", "", head, line]
    parts += [
        f"| {load_method(name).about.label} | " + " | ".join(_cells(rows, name, columns, min)) + " |"
        for name in methods
    ]
    own = [key for key in CASES if CASES[key].only and any(row["case"] == key for row in rows)]
    if own:
        method = CASES[own[0]].only
        parts += ["", f"Attacks on what {load_method(method).about.label} measures:", ""]
        parts += ["| Attack | Mean of the honest sites | Worst of them |", "| --- | ---: | ---: |"]
        means, worst = (_cells(rows, method, own, of) for of in (mean, min))
        parts += [f"| {CASES[k].label} | {a} | {b} |" for k, a, b in zip(own, means, worst, strict=True)]
    return "\n".join([*parts, *_refusals(rows)])


def _cells(rows: Sequence[Mapping[str, Any]], method: str, columns: Sequence[str], of: Callable) -> list[str]:
    """Return the cells of a row: mean over seeds in percent, and its difference from the row without an attack."""
    mine = {key: [r for r in rows if (r["method"], r["case"]) == (method, key)] for key in ["none", *columns]}
    return [_cell(mine["none"], mine[key], of, alone=key == "none") for key in columns]


def _cell(without: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], of: Callable, *, alone: bool) -> str:
    if not rows or not without:
        return ""
    if any(row["stopped"] for row in rows):
        return "job ends"
    value, base = (mean(100 * of(row["dice"].values()) for row in some) for some in (rows, without))
    return f"{value:.1f}" if alone else f"{value:.1f} ({value - base:+.1f})"


def _refusals(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List for each attack the methods whose server refused it, with the reason."""
    found: dict[str, str] = {}
    for row in rows:
        case = BEYOND[row["case"].removeprefix("beyond_")] if row["case"] not in CASES else CASES[row["case"]]
        label = f"{load_method(row['method']).about.label}, {case.label}"
        refused = [one["reason"] for one in row["refused"]]
        if refused or row["stopped"]:
            found.setdefault(label, row["stopped"] or refused[0])
        elif row["case"] not in CASES:
            found.setdefault(label, f"not refused; Dice {100 * mean(row['dice'].values()):.1f}")
    if not found:
        return ["", "No attack was refused."]
    return ["", "Refused:", "", *(f"- {label}: {reason}" for label, reason in found.items())]
