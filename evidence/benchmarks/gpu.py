"""Time PFedSIS's network on a GPU, compared with a MONAI network of similar size, and steps of `surgfl pretrain`.

Both networks take turns in one run at 512x640 (height x width): a training step of 8 frames in float32 and in mixed
precision, and one frame's prediction. The paper reports 15.20 ms for the prediction (Table II, its GPU). The table
also has the share of the arithmetic limit: multiply-adds per second, counted by PyTorch, divided by the multiply-adds
per second of a large matrix product in the same precision. A step counts as three forward passes.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from monai.networks.nets import FlexibleUNet
from torch import Tensor, nn
from torch.nn import functional as F

from evidence.benchmarks.pretraining_cost import counted
from evidence.benchmarks.turns import fastest
from shared_components.core.bundle import load_bundle
from shared_components.core.optimizers import AdamW
from shared_components.core.shipped_weights import shipped_weights
from shared_components.core.trained_model import load_trained
from shared_components.networks.fused_fpn import fuse
from shared_components.scenes.scene import render_video
from shared_components.weights.pretraining.learner import Learner
from shared_components.weights.pretraining.plan import Phase, Settings, task_for

HEIGHT, WIDTH, BATCH, CLASSES = 512, 640, 8, 4
TURNS, REPEATS, PRODUCT = 3, 5, 8192  # rows of the large matrices
PRETRAINED = ((96, 128), (192, 256), (512, 640))
PAPER_MS = 15.20
OURS, PEER = "pvt_fpn", "MONAI FlexibleUNet, efficientnet-b0"
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}


def table(device: torch.device, *, size: tuple[int, int], batch: int, product: int) -> Iterator[str]:
    """Yield the lines of all measurements at a size; `product`: rows of the matrix product that sets the limit."""
    shipped = load_trained(shipped_weights("pvt_fpn"), bundle="pvt_fpn").network.to(device)
    networks: dict[str, nn.Module] = {  # networks with training steps
        OURS: copy.deepcopy(shipped),
        PEER: FlexibleUNet(in_channels=3, out_channels=CLASSES, backbone="efficientnet-b0", spatial_dims=2),
    }
    networks = {name: network.to(device) for name, network in networks.items()}
    limits = {name: limit(product, kind, device) for name, kind in PRECISIONS.items()}
    yield f"limit: a product of {product} rows: " + ", ".join(
        f"{n} {x / 1e12:.3g} T multiply-adds/s" for n, x in limits.items()
    )
    for what, prepare, frames, passes in (("step", step, batch, 3), ("prediction", prediction, 1, 1)):
        for name, kind in PRECISIONS.items():
            image = torch.rand(frames, 3, *size, device=device)
            work = {label: prepare(network, image, kind) for label, network in networks.items()}
            found = fastest_on(work, device)
            for label, seconds in found.items():
                share = passes * counted(partial(networks[label], image)) / seconds / limits[name]
                yield f"{what} of {frames}, {name:8} {label:36} {seconds * 1e3:8.2f} ms, {share:6.1%} of the limit"
            yield f"{what} of {frames}, {name:8} {OURS} / {PEER} {found[OURS] / found[PEER]:.2f}"
    (scene,) = render_video("narrowband", 0, frames=1, height=size[0], width=size[1])
    frame = torch.from_numpy(scene.image).permute(2, 0, 1)[None].to(device) / 255  # (H, W, 3) -> (1, 3, H, W)
    yield from faster_predictions(shipped, frame)


def faster_predictions(network: nn.Module, image: Tensor) -> Iterator[str]:
    """Yield a line for each faster way of prediction, with the times of float32 and of the paper."""
    fused = fuse(copy.deepcopy(network))
    ways: dict[str, nn.Module] = {"fused": fused}
    if image.is_cuda:  # `surgfl segment` uses OpenVINO on the processor
        ways["fused and compiled"] = torch.compile(fused, mode="reduce-overhead")
    first = prediction(network, image, torch.float32)
    mask = first().argmax(1)
    for name, way in ways.items():
        for precision, kind in PRECISIONS.items():
            predict = prediction(way, image, kind)
            agree = float((predict().argmax(1) == mask).float().mean())
            before, now = fastest_on({"before": first, "now": predict}, image.device).values()
            yield (
                f"prediction, {name}, {precision:8} {now * 1e3:8.2f} ms, {before / now:.2f} times as fast as trained "
                f"and in float32, {before * 1e3:.2f}; masks agree on {agree:.2%}; the paper has {PAPER_MS:.2f} ms"
            )


def step(network: nn.Module, image: Tensor, kind: torch.dtype) -> Callable[[], object]:
    """Return a training step: forward, cross-entropy, backward, AdamW."""
    network.train()
    optimizer = AdamW(network.parameters(), lr=1e-5)
    labels = torch.randint(CLASSES, (image.shape[0], *image.shape[2:]), device=image.device)

    def take() -> None:
        optimizer.zero_grad()
        with autocast(image.device, kind):
            loss = F.cross_entropy(network(image).float(), labels)
        loss.backward()
        optimizer.step()

    return take


def prediction(network: nn.Module, image: Tensor, kind: torch.dtype) -> Callable[[], Tensor]:
    """Return the prediction of frames."""
    network.eval()

    def predict() -> Tensor:
        with torch.no_grad(), autocast(image.device, kind):
            found: Tensor = network(image)
            return found

    return predict


def pretraining_steps(device: torch.device, *, sizes: Sequence[tuple[int, int]] = PRETRAINED) -> Iterator[str]:
    """Yield a line for each size: steps with and without CUDA graphs, with equal weights and frames."""
    bundle = load_bundle(OURS)
    for height, width in sizes:
        settings = Settings(OURS, "segmentation", (Phase(height, width, 1000),), batch=BATCH, precision="bf16")
        learners = {name: Learner(bundle, task_for(bundle, settings.task), settings) for name in ("graphs", "plain")}
        learners["plain"].graphs = None
        image = torch.rand(BATCH, 3, height, width, device=device)
        batch = {"image": image, "label": torch.randint(CLASSES, (BATCH, height, width), device=device)}
        losses = {name: [one.step(number, batch) for number in range(TURNS)] for name, one in learners.items()}
        apart = max(abs(a - b) for a, b in zip(losses["graphs"], losses["plain"], strict=True))
        found = fastest_on({name: partial(one.step, 1, batch) for name, one in learners.items()}, device)
        yield (
            f"pretrain {height}x{width}, {BATCH} frames: {found['graphs'] * 1e3:.2f} ms by graphs, "
            f"{found['plain'] * 1e3:.2f} without; losses of {TURNS} steps are {apart:.4f} apart at most"
        )


def autocast(device: torch.device, kind: torch.dtype) -> AbstractContextManager[object]:
    """Run a function under PyTorch's autocast to a precision."""
    return torch.autocast(device.type, kind, enabled=kind != torch.float32)


def limit(rows: int, kind: torch.dtype, device: torch.device) -> float:
    """Return the multiply-adds per second of a product of square matrices."""
    a, b = (torch.rand(rows, rows, dtype=kind, device=device) for _ in range(2))
    return rows**3 / fastest_on({"product": partial(torch.mm, a, b)}, device)["product"]


def fastest_on(work: Mapping[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Return the seconds of each function: the lowest mean over repeats, after one warm-up."""

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def repeated(once: Callable[[], object]) -> None:
        for _ in range(REPEATS):
            once()

    works = {name: partial(repeated, once) for name, once in work.items()}
    fastest(works, 1)
    return {name: seconds / REPEATS for name, seconds in fastest(works, TURNS, clock=clock).items()}
