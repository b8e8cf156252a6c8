"""Measure how well SurgFed's shipped weights follow objects, with and without channel selection.

    python -m evidence.following

The selection was trained with an indicator of zeros. A network with `text: none` loads the same file without the
selection. The videos are those of the card: looks that no training uses, and named looks.
"""

import statistics
from collections.abc import Mapping
from typing import Any

import torch

from shared_components.common.machine import hardware
from shared_components.core.bundle import load_bundle
from shared_components.core.shipped_weights import verified_weights
from shared_components.federation.runs.provenance import commit
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import load_into, load_metadata
from shared_components.weights.pretraining.plan import Phase, Settings
from shared_components.weights.pretraining.tracks import NETWORK, OBJECTS, Tracks

BUNDLE = "surgfed"


def main() -> int:
    """Print the IoU of the first frame, and the mean IoU of later frames, by network and kind of looks."""
    torch.set_num_threads(1)
    path, sha256 = verified_weights(BUNDLE)
    notes = load_metadata(path)
    size = int(notes["height"]), int(notes["width"])
    tracks = Tracks(Settings(BUNDLE, notes["task"], (Phase(*size, 1),)))
    network = build_network(load_bundle(BUNDLE).network, out_channels=OBJECTS + 1)
    load_into(network, path)
    for name, selection in (("with the selection", network.selection), ("without", None)):
        network.selection = selection
        for looks, found in tracks.scores(network).items():
            print("{}, {} looks: first frame {:.3f}, later {:.3f}".format(name, looks, *first_and_later(found)))
    print(f"weights {sha256[:8]}, commit {commit()}, {hardware()}, one thread")
    return 0


def first_and_later(found: Mapping[str, Any]) -> tuple[float, float]:
    """Return the network's mean IoU of the first frame, and of later frames."""
    first, *later = found[NETWORK]
    return first, statistics.mean(later)


if __name__ == "__main__":
    raise SystemExit(main())
