"""The memory of FL-EndoViT at the published size: one round of two sites with ViT-B, by FLARE's simulator.

`python -m evidence.benchmarks.vit_base`. Weights are random and data rendered, 224 pixels, batch 4, adaptive SAM;
memory is measured as in `small_sam2`. Then the names of the tensors that are left are compared with the official ones.
"""

import re
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors import safe_open

from evidence.benchmarks.simulator import NVFLARE
from evidence.benchmarks.small_sam2 import peak_of, write_job

AIM = 8  # GB
SIDE, STEPS, BATCH = 224, 2, 4
CHANGES: dict[str, Any] = {
    "rounds": 1,
    "arguments": {"adaptive": True, "rho": 0.7, "eta": 0.2},
    "training": {"height": SIDE, "width": SIDE, "batch_size": BATCH, "iterations": STEPS, "layer_decay": 0.65},
    "network": {"architecture": "base"},
    "tasks": {"reconstruction": {"patch": 16}},
    "synthetic": {"tasks": ["reconstruction"], "frames_per_video": 4, "videos": [2, 1, 1], "height": 256, "width": 256},
}
BLOCK = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
OFFICIAL = {
    *("cls_token", "pos_embed", "mask_token", "decoder_pos_embed"),
    *(f"{name}.{kind}" for kind in ("weight", "bias") for name in (
        "patch_embed.proj", "norm", "decoder_embed", "decoder_norm", "decoder_pred",
        *(f"blocks.{number}.{part}" for number in range(12) for part in BLOCK),
        *(f"decoder_blocks.{number}.{part}" for number in range(8) for part in BLOCK),
    )),
}  # fmt: skip
"""Tensor shapes of mae_vit_base_patch16 (facebookresearch/mae), written independently of our network."""


def main(changes: dict[str, Any] = CHANGES) -> None:
    """Print the largest sum, the size of an update, and whether the names are the official ones."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        write_job(job, changes, name="fl_endovit")
        started = time.monotonic()
        log = Path(folder) / "log.txt"
        peak = peak_of([NVFLARE, "simulator", str(job), "-w", str(Path(folder) / "ws"), "-n", "2"], log)
        took = time.monotonic() - started
        with safe_open(Path(folder) / "ws/models/site-1/model.safetensors", framework="pt") as file:
            names = set(file.keys())
        sent = re.findall(r"up ([\d.]+) MB", log.read_text("utf-8"))
    print(f"a round of two sites, ViT-B at {SIDE}x{SIDE}, batch {BATCH}, {STEPS} steps, all processes (aim {AIM} GB)")
    print(f"  at most {peak / 1e9:.1f} GB; {took:.0f} s; up {', '.join(sent)} MB a site and round (aim 447)")
    print(f"  {len(names)} tensors; other names than the official ones: {sorted(names ^ OFFICIAL) or 'none'}")


if __name__ == "__main__":
    main()
