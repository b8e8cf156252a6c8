"""Measure time and bytes of FedST at a site, compared with FedAvg on the same network and on single frames.

A round is all work of a site, as in `site_round`, with the state of the round before: restore, paste, set the text,
validate, train, cut, save. The server's training is not included.

Fang et al., Section 4.4.2: local training took 20 hours. A round of FedST sends 12.69 MB, a round of FedAvg and FedLD
19.71 MB (ratio 0.64). The hours of FedAvg are in Table 9, which our text of the paper lacks, so there is no ratio of
times to compare with.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from evidence.benchmarks.site_round import SIZE, Variant, fastest, render
from shared_components.core.bundle import load_bundle
from shared_components.core.method import load_method
from shared_components.core.partition import Role, partition_network
from shared_components.networks.bundle_config import weightless

CLIP = {"frames": 4, "interval": 0.2}
SINGLE_FRAMES = {"temporal": False, "text": "none"}
TRAINING = {**SIZE, "batch_size": 2}  # Section 4.1.3 of the paper; the job
VARIANTS: dict[str, dict[str, Any]] = {
    "FedST": {"method": "fedst", "arguments": {"synthetic": "none"}},
    "FedAvg, same network and clips": {"method": "fedavg"},
    "FedAvg, network of single frames": {
        "method": "fedavg",
        "network": SINGLE_FRAMES,
        "tasks": {"segmentation": {"frames": 1, "interval": 0.0}},
    },
}
PERSONAL = (["queries"], ["queries", "decoder"])  # the default; the setting with about the paper's bytes
NETWORKS: dict[str, dict[str, Any]] = {
    "temporal layer and text": {},
    "temporal layer": {"text": "none"},
    "text": {"temporal": False},
    "neither": SINGLE_FRAMES,
}


def main(folder: Path) -> None:
    """Print both parts."""
    print_rounds(folder)
    print()
    print_bytes()


def print_rounds(folder: Path) -> None:
    """Print a round of FedST and both rounds of FedAvg."""
    torch.set_num_threads(1)
    scene = render(folder, clip=CLIP["frames"], interval=CLIP["interval"])[0]
    common = {"bundle": "fedst", "training": TRAINING}
    variants = {
        name: Variant.start(name, scene, folder, settings=common | settings, rounds_before=1)
        for name, settings in VARIANTS.items()
    }
    best = fastest(variants, repeats=2)
    print(
        f"a site's round on clips of {CLIP['frames']} frames at {SIZE['height']}x{SIZE['width']}, "
        f"batch {TRAINING['batch_size']}, {SIZE['iterations']} steps, the server's training left out"
    )
    whole, training = best.pop("FedST")
    for name, (theirs, trained) in best.items():
        ratio = f"{whole:.2f} s / {theirs:.2f} s = {whole / theirs:.2f}"
        print(f"  FedST / {name:40} {ratio}   training alone {training / trained:.2f}")


def print_bytes() -> None:
    """Print the bytes that a site sends and receives per round, and the bytes of all weights."""
    print("what a site sends in a round, and receives, / all of the same network's weights (aim 0.65)")
    for name, arguments in NETWORKS.items():
        everything = sent("fedavg", arguments)
        print(f"  network with {name}, {everything / 1e6:.1f} MB")
        for personal in PERSONAL:
            found = sent("fedst", arguments, personal=personal)
            print(f"    personal {', '.join(personal):20} {found / 1e6:5.1f} MB = {found / everything:.3f}")


def sent(method: str, network: Mapping[str, Any], **arguments: Any) -> int:
    """Return the bytes that travel each way in a round, from the method's partition.

    Args:
        method: Name of the method.
        network: Changes to the arguments of the bundle's network.
        arguments: Arguments of the method.
    """
    built = weightless(load_bundle("fedst", network=network).network)
    pieces = partition_network(built, load_method(method, **arguments).partition).with_roles(Role.GLOBAL, Role.MIXED)
    state = built.state_dict()
    return sum(p.view(state).numel() * p.view(state).element_size() for p in pieces.values())
