"""Time a site's round of PFedSIS compared with FedAvg on the same network and iterations.

The paper's Table II has 194 s (109 s without SGE) for PFedSIS and 106 s for FedAvg: ratios 1.83 and 1.03. A round here
is all work of a site: paste, validate, train, measure, cut, save. Rounds of the variants take turns, and the fastest of
each counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shared_components.federation.in_process import answer, answer_request, open_together
from shared_components.federation.messages import Job, Message
from shared_components.federation.protocol import conduct
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.site.runner import SiteRunner
from shared_components.scenes.site import plan_sites, write_site

SIZE = {"height": 96, "width": 128, "batch_size": 4, "iterations": 28, "learning_rate": 1e-3}  # the demo's size
REPEATS = 3
BF16 = {**SIZE, "precision": "bf16"}
VARIANTS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "fedavg", "bundle": "pvt_fpn"},
    "FedAvg, bf16": {"method": "fedavg", "bundle": "pvt_fpn", "training": BF16},
    "PFedSIS": {"method": "pfedsis", "arguments": {"sensitivity_images": 4}},
    "PFedSIS, bf16": {"method": "pfedsis", "arguments": {"sensitivity_images": 4}, "training": BF16},
    "PFedSIS, SGE off": {"method": "pfedsis", "arguments": {"sge": False}},
    "PFedSIS, APE off": {"method": "pfedsis", "arguments": {"ape": False, "sensitivity_images": 4}},
    "PFedSIS, half of the batch cross-style": {
        "method": "pfedsis",
        "arguments": {"cross_style_share": 0.5, "sensitivity_images": 4},
    },
    "PFedSIS as released": {"method": "pfedsis", "arguments": {"mode": "as_released", "sensitivity_images": 4}},
}


@dataclass
class Variant:
    """A site of one method that runs rounds on request."""

    server: ServerRunner
    site: SiteRunner
    message: Message

    @classmethod
    def start(
        cls, name: str, scene: Path, folder: Path, *, settings: Mapping[str, Any] | None = None, rounds_before: int = 0
    ) -> Variant:
        """Enrol a site.

        Args:
            name: Name of the variant, and of the subfolder of ``folder`` with its state.
            scene: The site.yaml.
            folder: Folder of states.
            settings: Job settings that differ from ``VARIANTS``.
            rounds_before: Finished rounds; after one round, a round also restores the site's saved state.
        """
        chosen = VARIANTS[name] if settings is None else settings
        job = Job(name="bench", **{"bundle": "pfedsis", "arguments": {}, "training": SIZE, **chosen})
        server, sites = open_together(job, {"site-1": scene}, folder / name.replace(" ", "_"), resume=False)
        conversation = conduct(server)
        asked = next(conversation)
        for _ in range(1 + rounds_before):  # the first request is the enrolment
            asked = conversation.send(answer(asked, sites))
        return cls(server, sites["site-1"], asked.messages["site-1"])

    def round(self) -> tuple[float, float]:
        """Return the seconds of one whole round, and the seconds of its training."""
        started = time.perf_counter()
        reply = answer_request(self.site, "round", self.message)
        return time.perf_counter() - started, reply.header["seconds"]["training"]


def fastest(variants: Mapping[str, Variant], repeats: int = REPEATS) -> dict[str, tuple[float, float]]:
    """Let the variants take turns; return the lowest seconds of each variant's rounds, and of their training."""
    best = dict.fromkeys(variants, (float("inf"), float("inf")))
    for _ in range(repeats):
        for name, variant in variants.items():
            found = variant.round()
            best[name] = (min(best[name][0], found[0]), min(best[name][1], found[1]))
    return best


def render(folder: Path, sites: int = 1, *, clip: int = 1, interval: float = 0.0) -> list[Path]:
    """Write sites of the demo's size and return their site.yaml files; clips as in `write_site`."""
    plans = plan_sites(folder / "scenes", sites=sites)
    for plan in plans:
        videos = {"train": 2, "validation": 1, "test": 1}
        write_site(
            plan.folder,
            look=plan.look,
            seed=plan.seed,
            layout=plan.layout,
            videos=videos,
            frames_per_video=8,
            clip=clip,
            interval=interval,
        )
    return [plan.folder / "site.yaml" for plan in plans]


def main(folder: Path, names: Sequence[str] = tuple(VARIANTS)) -> None:
    """Print the ratios of the named variants to FedAvg, which must be one of them."""
    torch.set_num_threads(1)
    scene = render(folder)[0]
    variants = {name: Variant.start(name, scene, folder) for name in names}
    best = fastest(variants)
    print(f"a site's round at {SIZE['height']}x{SIZE['width']}, batch {SIZE['batch_size']}, {SIZE['iterations']} steps")
    base = best["FedAvg"]
    for name, (whole, training) in best.items():
        print(
            f"  {name:40} {whole:6.2f} s   / FedAvg {whole / base[0]:5.2f}   training alone {training / base[1]:5.2f}"
        )
