"""Resolve a row's own rounds, iterations and arguments from those of its comparison."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from shared_components.core.method import load_method
from shared_components.experiments.comparison.plan import Run, Variant

AS_LONG: dict[str, tuple[str, ...]] = {"fedst": ("batches",)}
"""Arguments of methods that are as many as the comparison's iterations of a round, where a row says no other: FedST's
server has 100 batches where its sites have 100 iterations (Section 4.1.3)."""
_CLIP_WIDTH = 512  # of CLIP ViT-B/32's texts; all others have the bundle's width


def resolved(run: Run) -> Run:
    """Return the run with the values that its row leaves to the comparison: label, rounds, iterations, arguments.

    Raises:
        ValueError: A row's method or training cannot be.
    """
    variant, iterations = run.variant, run.settings().iterations
    rounds, own = apportioned(run.rounds, iterations, variant.share)
    own *= variant.times
    arguments = _arguments(variant, iterations)
    training = {**run.training, "iterations": own} if own != iterations else run.training
    label = variant.label.format(iterations=own)
    told = replace(variant, label=label, arguments=arguments, network=_network(variant), share=1.0, times=1)
    return replace(run, variant=told, rounds=rounds, training=training)


def apportioned(rounds: int, iterations: int, share: float) -> tuple[int, int]:
    """Return rounds and iterations of about a share of the iterations, of just the same total.

    Of the total's divisors that one is taken whose ratio to the share is nearest to 1, of two the smaller.
    """
    if share == 1.0:
        return rounds, iterations
    total, wanted = rounds * iterations, share * iterations
    divisors = [number for number in range(1, total + 1) if total % number == 0]
    own = min(divisors, key=lambda number: abs(math.log(number / wanted)))
    return total // own, own


def _arguments(variant: Variant, iterations: int) -> dict[str, Any]:
    trains = load_method(variant.method, **variant.arguments).server.update is not None
    as_long = AS_LONG.get(variant.method, ()) if trains else ()
    return {**dict.fromkeys(as_long, iterations), **variant.arguments}


def _network(variant: Variant) -> dict[str, Any]:
    """Return the overrides of the network; it takes an indicator of the width of its text's vector."""
    reads = variant.network.get("text") != "none" and variant.arguments.get("text_encoder") == "clip"
    return {**({"indicator": _CLIP_WIDTH} if reads else {}), **variant.network}
