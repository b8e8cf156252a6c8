"""Compare the processor time of SurgFL's FedAvg with FLARE's own FedAvg around a plain PyTorch loop.

python -m evidence.benchmarks.plain_flare

Both jobs run in FLARE's simulator with three sites as processes, the same network, frames and steps. Their sites
validate the received model on the same frames, and train with AdamW on cross-entropy and Dice loss. The plain loop
keeps its frames in memory and flips them. It has no other augmentation, checks, records or resume. A round's processor
time is the difference of a longer and a shorter run, divided by the rounds between them, so start and end cancel out.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.losses import DiceCELoss
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from torch import Tensor

from evidence.benchmarks.simulator import JOBS, NVFLARE
from evidence.benchmarks.site_round import SIZE, render
from evidence.benchmarks.turns import fastest
from shared_components.common.machine import peak_memory_mb
from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import Models, Update
from shared_components.core.partition import Partition
from shared_components.data.collate import as_numbers, collate
from shared_components.data.dataset import SampleDataset
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.networks.pvt_fpn import PvtFpn

SITES, SHORT, LONG, STEPS, TURNS = 3, 3, 11, (1, 8), 5
OURS, PLAIN = "SurgFL", "FLARE alone"
NETWORK = {"out_channels": 4}
MODULE = "evidence.benchmarks.plain_flare"  # of the components that FLARE loads


class ProcessorTime(FLComponent):
    """Writes the processor seconds and the peak memory of its process to a folder at the end of a run."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.END_RUN:
            cost = {"seconds": time.process_time(), "memory": peak_memory_mb()}
            (self.folder / f"{fl_ctx.get_identity_name()}.json").write_text(json.dumps(cost), "utf-8")


class PlainTraining(Executor):
    """A site of FLARE's FedAvg in plain PyTorch; ``scenes`` is the folder of the rendered sites."""

    def __init__(self, scenes: str, steps: int) -> None:
        super().__init__()
        self.scenes, self.steps = Path(scenes), steps
        self.network: torch.nn.Module | None = None

    def _start(self, site: str) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.network = PvtFpn(**NETWORK)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=SIZE["learning_rate"])
        self.loss = DiceCELoss(to_onehot_y=True, softmax=True)
        found = load_site(self.scenes / site / "site.yaml", name=site)
        self.frames = {split: decoded(found, split) for split in ("train", "validation")}

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        if self.network is None:
            self._start(fl_ctx.get_identity_name())
        received = {
            name: torch.as_tensor(value) for name, value in FLModelUtils.from_shareable(shareable).params.items()
        }
        self.network.load_state_dict(received)
        dice = self._validate()
        self._train()
        change = {name: (value - received[name]).numpy() for name, value in self.network.state_dict().items()}
        result = FLModel(
            params_type=ParamsType.DIFF, params=change, metrics={"dice": dice},
            meta={FLMetaKey.NUM_STEPS_CURRENT_ROUND: self.steps},
        )  # fmt: skip
        return FLModelUtils.to_shareable(result)

    @torch.no_grad()
    def _validate(self) -> float:
        self.network.eval()
        image, label = self.frames["validation"]
        scores = []
        for start in range(0, len(image), SIZE["batch_size"]):
            part = slice(start, start + SIZE["batch_size"])
            scores.append(1 - float(self.loss(self.network(image[part]), label[part])))
        return float(np.mean(scores))

    def _train(self) -> None:
        self.network.train()
        image, label = self.frames["train"]
        for _ in range(self.steps):
            chosen = torch.randint(len(image), (SIZE["batch_size"],))
            flips = [-1] if torch.rand(()) < 0.5 else []
            self.optimizer.zero_grad()
            loss = self.loss(self.network(image[chosen].flip(flips)), label[chosen].flip(flips))
            loss.backward()
            self.optimizer.step()
            loss.item()


def decoded(site: Any, split: str) -> tuple[Tensor, Tensor]:
    """Return the frames (N, 3, H, W) and labels (N, 1, H, W) of a split."""
    dataset = SampleDataset(samples(site, split), height=SIZE["height"], width=SIZE["width"], site=site)
    batch = as_numbers(collate([dataset[number] for number in range(len(dataset))]))
    return batch["image"], batch["label"][:, None]


def our_job(job: Path, rounds: int, steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configurations of server and sites of a copy of the FedAvg job."""
    configs = [json.loads((job / f"config_fed_{role}.json").read_text("utf-8")) for role in ("server", "client")]
    configs[0]["workflows"][0]["args"] |= {"rounds": rounds, "training": {**SIZE, "iterations": steps}}
    return configs[0], configs[1]


def plain_job(scenes: Path, rounds: int, steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configurations of server and sites of FLARE's FedAvg."""
    model = {"path": "shared_components.networks.pvt_fpn.PvtFpn", "args": NETWORK}
    server = {
        "format_version": 2,
        "server": {"task_request_interval": 0.2},
        "workflows": [{
            "id": "fedavg", "path": "nvflare.app_common.workflows.fedavg.FedAvg",
            "args": {"num_clients": SITES, "num_rounds": rounds},
        }],
        "components": [{
            "id": "persistor", "path": "nvflare.app_opt.pt.file_model_persistor.PTFileModelPersistor",
            "args": {"model": model},
        }],
    }  # fmt: skip
    executor = {
        "path": "evidence.benchmarks.plain_flare.PlainTraining",
        "args": {"scenes": str(scenes), "steps": steps},
    }
    return server, {"format_version": 2, "executors": [{"tasks": ["train"], "executor": executor}], "components": []}


def cost(kind: str, scenes: Path, folder: Path, *, rounds: int, steps: int) -> dict[str, Any]:
    """Run a job in the simulator; return processor seconds of all processes and of the server, and its memory in MB."""
    folder.mkdir()
    job = folder / "job"
    shutil.copytree(JOBS / "fedavg", job)
    config = job / "app" / "config"
    roles = our_job(config, rounds, steps) if kind == OURS else plain_job(scenes, rounds, steps)
    for role, text in zip(("server", "client"), roles, strict=True):
        text["components"].append({"id": "cost", "path": f"{MODULE}.ProcessorTime", "args": {"folder": str(folder)}})
        (config / f"config_fed_{role}.json").write_text(json.dumps(text), "utf-8")
    environment = {**os.environ, "SURGFL_SITE_CONFIG": str(scenes), "SURGFL_CPU_THREADS": "1"}
    subprocess.run(
        [NVFLARE, "simulator", str(job), "-w", str(folder / "workspace"), "-n", str(SITES), "-t", str(SITES)],
        check=True, env=environment, capture_output=True, timeout=900,
    )  # fmt: skip
    costs = {path.stem: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}
    server = next(value for name, value in costs.items() if not name.startswith("site-"))
    if len(costs) != SITES + 1:
        raise RuntimeError(f"{kind}: costs of {sorted(costs)} for a server and {SITES} sites")
    return {
        "all": sum(value["seconds"] for value in costs.values()),
        "server": server["seconds"],
        "memory": server["memory"],
    }


def per_round(kind: str, scenes: Path, folder: Path, steps: int) -> dict[str, float]:
    """Return the processor seconds of a round, of all processes and of the server, and the server's memory in MB."""
    name = kind.replace(" ", "-")
    short, long = (
        cost(kind, scenes, folder / f"{name}-{steps}-{rounds}", rounds=rounds, steps=steps) for rounds in (SHORT, LONG)
    )
    seconds = {part: (long[part] - short[part]) / (LONG - SHORT) for part in ("all", "server")}
    return {**seconds, "memory": long["memory"]}


def sums() -> dict[str, float]:
    """Return the processor seconds of weighted sums of 16 sites of 7 M float32 parameters, ours and FLARE's."""
    torch.set_num_threads(1)
    names, generator = [f"layer{number}" for number in range(7)], torch.Generator().manual_seed(0)
    updates = [
        Update(f"site-{k}", 0, {name: torch.randn(1024, 1024, generator=generator) for name in names}, samples=10 + k)
        for k in range(16)
    ]
    models = Models({name: torch.zeros(1024, 1024) for name in names}, {})

    def flare(data: Sequence[Mapping[str, Any]]) -> None:
        helper = WeightedAggregationHelper()
        for update, tensors in zip(updates, data, strict=True):
            helper.add(tensors, update.samples, update.site, 0)
        helper.get_result()

    arrays = [{name: value.numpy() for name, value in update.pieces.items()} for update in updates]
    return fastest(
        {
            OURS: lambda: WeightedMean().apply({}, Partition(()), models, updates),
            "FLARE, tensors": lambda: flare([dict(update.pieces) for update in updates]),
            "FLARE, arrays": lambda: flare(arrays),
        },
        TURNS,
    )


def main(folder: Path) -> None:
    """Print the ratios."""
    ours, *others = (seconds := sums()).values()
    ratios = ", ".join(f"{name} {ours / other:.2f}" for name, other in zip([*seconds][1:], others, strict=True))
    print(f"weighted sum of 16 sites of 7 M parameters, in float64 / FLARE's in float32: {ratios}", flush=True)
    scenes = render(folder, sites=SITES)[0].parents[1]
    print(f"a round of SurgFL / of FLARE alone, processor time: {SITES} sites at {SIZE['height']}x{SIZE['width']}")
    for steps in STEPS:
        found: Mapping[str, dict[str, float]] = {kind: per_round(kind, scenes, folder, steps) for kind in (OURS, PLAIN)}
        for part in ("all", "server", "memory"):
            ours, plain = found[OURS][part], found[PLAIN][part]
            print(
                f"  {steps} steps, {part:6}  {OURS} {ours:.2f} / {PLAIN} {plain:.2f} = {ours / plain:.2f}", flush=True
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(f"commit {commit()}, {hardware()}")
        main(Path(folder))
