"""Grade FedSurg's rendered centres by colour histograms: a control for the networks of the preset `fedsurg`.

    python -m evidence.colours

A logistic regression trains on the training videos of the three centres. It is scored on the test videos of each centre
and of the unseen centre with FedSurg's metrics. Its features are the three colour histograms of a video.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.common.machine import hardware
from shared_components.core.bundle import load_bundle
from shared_components.core.labels import LabelScore
from shared_components.core.task import Task, make_task
from shared_components.data.samples import Item, read_sample, samples
from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from shared_components.experiments.comparison.fedsurg_presets import BUNDLE, FEDSURG_SCALES, TASK
from shared_components.experiments.comparison.sites import set_sites
from shared_components.federation.runs.provenance import commit

KIND = "classification"
BINS = 16
STRENGTH = 0.1  # inverse regularisation strength, C of scikit-learn


def main() -> int:
    """Render the centres, train, and print the scores."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        files, outside = set_sites(Path(folder), FEDSURG_SCALES["small"], "fedsurg")
        assert outside is not None
        centres, unseen = [load_site(path) for path in files.values()], load_site(outside)
        task = make_task(KIND, load_bundle(BUNDLE, tasks=TASK).tasks[KIND], classes=unseen.classes)
        items = [item for centre in centres for item in items_of(centre, "train", task)]
        model = regression(histograms(items), grades(items, task), len(task.classes))
        found = [scores(model, items_of(site, "test", task), task) for site in (*centres, unseen)]
    for name, some in (("centres, mean", found[:-1]), ("unseen centre", found[-1:])):
        accuracy, f1, cost = (statistics.mean(values) for values in zip(*some, strict=True))
        print(f"{name}: accuracy {accuracy:.1%}, macro F1 {f1:.1%}, expected cost {cost:.3f}")
    print(f"accuracy by centre: {', '.join(f'{one[0]:.1%}' for one in found)}")
    print(f"commit {commit()}, {hardware()}, one thread")
    return 0


def items_of(site: Site, split: str, task: Task) -> list[Item]:
    """Return the videos of a split, each with its grade."""
    return [read_sample(sample) for sample in samples(site, split, task.spec)]


def histograms(items: Sequence[Item]) -> Tensor:
    """Return a row of features for each video: the share of pixels in each bin of each colour, (N, 3 * BINS)."""
    rows = []
    for item in items:
        counts = [np.histogram(item.images[..., colour], BINS, (0, 256))[0] for colour in range(3)]
        rows.append(np.concatenate(counts) / item.images[..., 0].size)
    return torch.tensor(np.stack(rows))


def grades(items: Sequence[Item], task: Task) -> Tensor:
    """Return each video's grade (N,)."""
    return torch.tensor([int(np.asarray(item.targets[task.target]).reshape(-1)[-1]) for item in items])


def regression(features: Tensor, grade: Tensor, classes: int) -> nn.Module:
    """Return a logistic regression with L2 penalty on standardised features."""
    mean, deviation = features.mean(0), features.std(0).clamp_min(1e-6)
    standard = (features - mean) / deviation
    layer = nn.Linear(features.shape[1], classes, dtype=torch.float64)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=1000, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = STRENGTH * F.cross_entropy(layer(standard), grade, reduction="sum") + layer.weight.square().sum() / 2
        found.backward()
        return found

    optimizer.step(loss)
    with torch.no_grad():  # predicts from the same features
        layer.weight /= deviation
        layer.bias -= layer.weight @ mean
    return layer


@torch.no_grad()
def scores(model: nn.Module, items: Sequence[Item], task: Task) -> tuple[float, float, float]:
    """Return accuracy, macro F1 and expected cost of a model on videos."""
    probabilities, truth = model(histograms(items)).softmax(1).numpy(), grades(items, task).numpy()
    found = task.summarise(
        [
            LabelScore(item.video, item.number, probabilities[n : n + 1], truth[n : n + 1])
            for n, item in enumerate(items)
        ]
    )
    return found["accuracy"]["mean"], found["macro_f1"]["mean"], found["expected_cost"]["mean"]


if __name__ == "__main__":
    raise SystemExit(main())
