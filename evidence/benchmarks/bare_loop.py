"""Compare a site's training and validation with a bare PyTorch loop: `python -m evidence.benchmarks.bare_loop`.

Both train the same network on the same rendered frames, batches of 4, AdamW, cross-entropy and Dice loss. A site reads
its frames from the frame cache and augments them; the bare loop keeps floats in memory and augments nothing. The bare
validation predicts batches with the network as trained. The fastest of several turns counts, in processor time of one
thread.
"""

import copy
import tempfile
from functools import partial
from pathlib import Path

import cv2
import torch
from monai.losses import DiceCELoss
from torch import nn

from evidence.benchmarks.turns import fastest
from shared_components.core.evaluation import network_input, score_quickly
from shared_components.core.method import load_method
from shared_components.core.partition import partition_network
from shared_components.core.task import make_task
from shared_components.core.training import TrainingSteps, make_context, make_optimizer, training_batches
from shared_components.core.training_settings import Training
from shared_components.data.dataset import SampleDataset
from shared_components.data.frame_cache import FrameCache
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.networks.pvt_fpn import PvtFpn
from shared_components.scenes.site import write_site

SIZES, BATCH, STEPS, TURNS, FRAMES = ((96, 128), (512, 640)), 4, 3, 3, 4


def main(folder: Path) -> None:
    """Print the ratios."""
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    options = {"layout": "endovis2018", "height": 1024, "width": 1280, "frames_per_video": FRAMES}
    path = write_site(folder / "site", look="rose", seed=1, videos={"train": 1, "validation": 1}, **options)
    cache = FrameCache(folder / "cache", limit=10**10)
    print(f"a site's processor time / a bare loop's, batch {BATCH}")
    for height, width in SIZES:
        ratios = compared(path, cache, height, width)
        print(f"  {height}x{width}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()), flush=True)


def compared(path: Path, cache: FrameCache, height: int, width: int) -> dict[str, float]:
    """Return the ratios of training and of validation."""
    site = load_site(path)
    task, method = make_task("segmentation", {}, classes=site.classes), load_method("fedavg")
    settings = Training(height=height, width=width, batch_size=BATCH, iterations=STEPS)
    network = PvtFpn(out_channels=task.channels)
    train, validation = (
        SampleDataset(samples(site, split), height=height, width=width, site=site, cache=cache)
        for split in ("train", "validation")
    )
    context = make_context(settings, task, round=0, site=0, rounds=1)
    optimizer, partition = make_optimizer(network, settings), partition_network(network, method.partition)

    def site_steps() -> None:
        batches = training_batches(
            train, settings, method, context, iterations=STEPS, device=torch.device("cpu")
        )  # fmt: skip
        TrainingSteps(network, optimizer, method, context, partition).run(batches)

    loops = {
        "training": {"site": site_steps, "bare": bare_steps(copy.deepcopy(network), train)},
        "validation": {
            "site": partial(score_quickly, network, task, validation),
            "bare": bare_validation(copy.deepcopy(network), validation),
        },
    }
    ratios = {}
    for name, works in loops.items():
        fastest(works, 1)  # fills the frame cache
        seconds = fastest(works, TURNS)
        ratios[name] = seconds["site"] / seconds["bare"]
    return ratios


def bare_steps(network: nn.Module, dataset: SampleDataset) -> partial[None]:
    """Return training steps on frames in memory."""
    items = [dataset.arrays(number) for number in range(BATCH)]
    image = torch.cat([network_input(images, *images.shape[1:3]) for images, _ in items])
    label = torch.stack([torch.from_numpy(targets["label"])[None] for _, targets in items]).long()  # (B, 1, H, W)
    optimizer, loss_of = torch.optim.AdamW(network.parameters(), lr=5e-4), DiceCELoss(to_onehot_y=True, softmax=True)

    def steps() -> None:
        network.train()
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(network(image), label)
            loss.backward()
            optimizer.step()
            loss.item()

    return partial(steps)


def bare_validation(network: nn.Module, dataset: SampleDataset) -> partial[None]:
    """Return the prediction of all frames in one batch, and their class sets as in `score_quickly`."""
    frames = [dataset.arrays(number)[0] for number in range(len(dataset))]
    image = torch.cat([network_input(images, *images.shape[1:3]) for images in frames])

    @torch.no_grad()
    def validate() -> None:
        network.eval()
        network(image).argmax(1)

    return partial(validate)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(f"commit {commit()}, {hardware()}, one thread")
        main(Path(folder))
