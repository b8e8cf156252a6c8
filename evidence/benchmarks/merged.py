"""Measure the time that merged convolutions save per training step of pvt_fpn: `python -m evidence.benchmarks.merged`.

Forward and backward passes take turns; the fastest of each counts, in processor time of one thread.
"""

from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor, nn

from evidence.benchmarks.turns import fastest
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.networks import pvt_fpn

SIZES = ((4, 96, 128), (2, 192, 256), (8, 192, 256), (1, 512, 640))  # frames per batch, height, width
TURNS = 5


def main() -> None:
    """Print a line for each size."""
    torch.set_num_threads(1)
    network = pvt_fpn.PvtFpn(out_channels=4).train()
    for frames, height, width in SIZES:
        image = torch.rand(frames, 3, height, width)
        works = {
            "merged": partial(step, network, image, pvt_fpn.MERGED_FROM),
            "plain": partial(step, network, image, image.numel()),  # more pixels than any feature map has
        }
        merged, plain = fastest(works, TURNS).values()
        print(f"  {frames} of {height}x{width}: merged / plain convolutions {merged / plain:.2f} "
              f"({merged * 1e3:.0f} / {plain * 1e3:.0f} ms)", flush=True)  # fmt: skip


def step(network: nn.Module, image: Tensor, merged_from: int) -> None:
    """Run a forward and backward pass; maps with at least this number of pixels use merged convolutions."""
    with patch.object(pvt_fpn, "MERGED_FROM", merged_from):
        network(image).square().mean().backward()


if __name__ == "__main__":
    print(f"commit {commit()}, {hardware()}")
    main()
