"""Read the server's mixing weights over the rounds, and compare them with plain averaging.

Weights and entropies come from the aggregation records. Entropies are divided by the entropy of equal weights: 1 is
plain averaging over the sites, 0 uses only one site.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from shared_components.reporting.records import NAN, Curve, Run, mean

# thresholds of the normalised entropy: "practically" plain averaging, and "close to" plain averaging
PLAIN, CLOSE = 0.999, 0.99
_SUBJECTS = {
    "hypernetwork": "The hypernetwork's mixing of the personal weights",
    "sensitivity": "The sensitivity weighting of the shared weights",
    "sensitivity_relative": "The relative variant of the sensitivity weighting (recorded, not used)",
    "sensitivity_raw": "The published (raw) variant of the sensitivity weighting (recorded, not used)",
}


def last_mixing(run: Run) -> tuple[int, dict[str, dict[str, dict[str, float]]]]:
    """Return the newest round with mixing weights, and the weights as site -> layer -> source site -> weight."""
    return next(((r, run.aggregations[r]["mixing"]) for r in mixed_rounds(run)[::-1]), (-1, {}))


def matrices(run: Run, round: int | None = None) -> dict[str, list[list[float]]]:
    """Return a round's (default: newest) mixing weights by layer; row i is for site i, NaN marks absent weights."""
    mixing = last_mixing(run)[1] if round is None else run.aggregations[round]["mixing"]
    layers = dict.fromkeys(layer for by_layer in mixing.values() for layer in by_layer)
    return {layer: [[_weight(mixing, s, layer, t) for t in run.sites] for s in run.sites] for layer in layers}


def spread(weights: Mapping[str, Sequence[Sequence[float]]], sites: int) -> float:
    """Return the largest distance of a weight from 1 / K, at least 0.25 / K so that noise stays pale."""
    values = [v for rows in weights.values() for row in rows for v in row if math.isfinite(v)]
    return max([0.25 / sites, *(abs(v - 1 / sites) for v in values)])


def own_weights(run: Run) -> dict[str, Curve]:
    """Return by site the mean weight over the layers that it gives its own parameters."""
    curves: dict[str, Curve] = {site: {} for site in run.sites}
    for r, site in product(mixed_rounds(run), run.sites):
        mixing = run.aggregations[r]["mixing"]
        if layers := mixing.get(site):
            curves[site][r] = mean([_weight(mixing, site, layer, site) for layer in layers])
    return curves


def entropies(run: Run) -> dict[str, Curve]:
    """Return the recorded entropies by name; an entropy recorded by site is averaged over the sites."""
    by_name: dict[str, Curve] = {}
    for r, line in sorted(run.aggregations.items()):
        for name, value in (line.get("entropy") or {}).items():
            values = value.values() if isinstance(value, dict) else [value]
            by_name.setdefault(name, {})[r] = mean([float(v) for v in values if v is not None])
    return by_name


def verdicts(run: Run) -> list[str]:
    """Return a sentence per kind of mixing that compares the last round with plain averaging."""
    if len(run.sites) == 1:
        return ["There is only one site, so nothing was mixed."] if entropies(run) else []
    last = {name: curve[max(curve)] for name, curve in entropies(run).items()}
    return [_verdict(run, name, entropy) for name, entropy in last.items() if not math.isnan(entropy)]


def _verdict(run: Run, name: str, entropy: float) -> str:
    subject = _SUBJECTS.get(name, f"The mixing by {name}")
    digits = 5 if entropy > PLAIN else 3
    measured = f"normalised entropy {entropy:.{digits}f} in the last round; 1 means equal weights"
    if entropy > PLAIN:
        return f"{subject} is practically plain averaging ({measured})."
    own, tail = mean([curve[max(curve)] for curve in own_weights(run).values() if curve]), ""
    if name == "hypernetwork" and not math.isnan(own):
        share = f"an equal share is {1 / len(run.sites):.2f}"
        tail = f": a site weights its own parameters with {own:.2f} on average; {share}"
    degree = "is close to" if entropy > CLOSE else "differs from"
    return f"{subject} {degree} plain averaging ({measured}){tail}."


def mixed_rounds(run: Run) -> list[int]:
    """Return the rounds with mixing weights, in order."""
    return [r for r, line in sorted(run.aggregations.items()) if line.get("mixing")]


def _weight(mixing: dict[str, Any], site: str, layer: str, source: str) -> float:
    value = mixing.get(site, {}).get(layer, {}).get(source)
    return NAN if value is None else float(value)
