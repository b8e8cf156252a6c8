"""What merged convolutions save of a training step of pvt_fpn's network: `python -m evidence.benchmarks.merged`.

Forward and backward pass of both take turns, in processor time of one thread; the fastest of each counts.
"""

from __future__ import annotations

import time
from unittest.mock import patch

import torch

from shared_components.federation.provenance import commit, hardware
from shared_components.networks import pvt_fpn

SIZES = ((4, 96, 128), (2, 192, 256), (8, 192, 256), (1, 512, 640))  # frames of a batch, height, width
TURNS = 5


def main() -> None:
    """Print a line for each size."""
    torch.set_num_threads(1)
    network = pvt_fpn.PvtFpn(out_channels=4).train()
    for frames, height, width in SIZES:
        image = torch.rand(frames, 3, height, width)
        best = {
            pvt_fpn.MERGED_FROM: float("inf"),
            frames * height * width: float("inf"),
        }  # of the latter none is merged
        for _ in range(TURNS):
            for pixels in best:
                with patch.object(pvt_fpn, "MERGED_FROM", pixels):
                    began = time.thread_time()
                    network(image).square().mean().backward()
                    best[pixels] = min(best[pixels], time.thread_time() - began)
        merged, plain = best.values()
        print(f"  {frames} of {height}x{width}: merged / plain convolutions {merged / plain:.2f} "
              f"({merged * 1e3:.0f} / {plain * 1e3:.0f} ms)", flush=True)  # fmt: skip


if __name__ == "__main__":
    print(f"commit {commit()}, {hardware()}")
    main()
