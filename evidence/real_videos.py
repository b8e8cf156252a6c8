"""Train FL-EndoViT's triplets and phases on real frames (CholecT50's challenge validation set), leaving one video out.

    python -m evidence.real_videos --data /data/cholect50_challenge_val --out real

Each of the five videos is a site. For each video, the other four train a job (`nvflare_jobs/jobs.yaml`) with FedAvg in
one process. The shared model after the last round is scored on the left-out video; no score selects a model. Rows
differ in their initial weights and in whether the encoder is trained (`ROWS`). Further rows never look at a frame
(`blind`). A finished run is not repeated.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch
import yaml

from shared_components.common.atomic import write_json, write_text
from shared_components.common.machine import hardware
from shared_components.core import evaluation
from shared_components.core.card import Metric
from shared_components.core.labels import LabelScore
from shared_components.core.task import Scores, Task
from shared_components.data.dataset import SampleDataset
from shared_components.data.readers import find_reader
from shared_components.data.samples import samples
from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import Job
from shared_components.federation.runs.provenance import commit
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.setup.site_setup import set_up_site
from shared_components.flare.deployment.job_files import described_jobs
from shared_components.flare.deployment.job_folder import jobs_folder
from shared_components.networks.checkpoints import load_weights
from shared_components.reporting.tables import Table, as_markdown

Array = np.ndarray
T = TypeVar("T")
DATASET = "cholect50"
STRETCHES, PARTS = 5, 5  # labelled frames per video, and per stretch whose last part is for validation
DRAWS = 20  # random answers, whose scores are averaged


@dataclass(frozen=True)
class Use:
    """A task of FL-EndoViT: its job, and the metrics of the table."""

    job: str
    metrics: tuple[str, ...]


USES = {
    "triplets": Use("fl_endovit_triplets", ("map", "map_i")),
    "phases": Use("fl_endovit_phases", ("accuracy", "f1", "macro_f1")),
}
SIZES = ("rounds", "iterations", "batch_size")
_FROZEN = {"network": {"trained_encoders": False}}
ROWS: dict[str, dict[str, Any]] = {
    "random weights": {"training": {"start": "random"}},
    "FL-EndoViT as shipped": {"training": {"start": "rendered"}},
    "random weights, frozen": {**_FROZEN, "training": {"start": "random"}},
    "FL-EndoViT as shipped, frozen": {**_FROZEN, "training": {"start": "rendered"}},
}
"""Changes of the job, by row; other settings are the job's, including layer decay."""


@dataclass(frozen=True)
class Result:
    """Scores of a row for one video by metric: on it (``held_out``), and on the trained videos' validation frames."""

    row: str
    video: str
    seed: int
    held_out: Mapping[str, float]
    own: Mapping[str, float]


# ---- Sites


def stretches(count: int) -> dict[str, list[list[int]]]:
    """Return the training frames and the validation frames (a fifth) of a video, as [first, one after the last].

    Validation frames are seconds away from training frames. They show whether a network has learnt its videos, not
    whether it works for other patients.

    Raises:
        ValueError: There are fewer than 25 frames.
    """
    parts = STRETCHES * PARTS
    if count < parts:
        raise ValueError(f"a video has {count} labelled frames, and {parts} are needed; leave it out")
    bounds = [count * n // parts for n in range(parts + 1)]
    lasts = range(PARTS - 1, parts, PARTS)
    return {
        "train": [[bounds[n - PARTS + 1], bounds[n]] for n in lasts],
        "validation": [[bounds[n], bounds[n + 1]] for n in lasts],
    }


def write_sites(data: Path, folder: Path, task: str) -> dict[str, dict[str, Path]]:
    """Write two site.yaml for each video, for training and for testing; return them by "train" and "test", and video.

    Sites publish their model, which is tested on the left-out video.
    """
    reader = find_reader(DATASET)
    common = {"dataset": DATASET, "root": str(data.resolve()), "task": task, "publish": ["model"]}
    files: dict[str, dict[str, Path]] = {"train": {}, "test": {}}
    for video in reader.videos(data):
        cut = stretches(len(reader.frames(data, video)))
        trained: Mapping[str, Any] = {split: [{video: ends} for ends in parts] for split, parts in cut.items()}
        for kind, split in {"train": trained, "test": {"test": [video]}}.items():
            file = folder / task / kind / video / "site.yaml"
            write_text(file, yaml.safe_dump({"name": video, **common, "split": split}, sort_keys=False))
            files[kind][video] = file
    return files


# ---- Answers that never look at a frame


def blind(task: Task, frames: int, trained: Array) -> dict[str, Iterator[Array]]:
    """Return answers without a look at the frames, by row: one for constant answers, `DRAWS` for random answers.

    Args:
        frames: Number of frames, N.
        trained: Ground truth of the training frames, from `truth_of`.

    Returns:
        float64 (N, C) each. Triplets: equal scores, whose average precision is a triplet's share of the frames, and
        uniform random scores. Phases: the most frequent phase of the training frames, and random phases with the same
        frequencies.
    """
    random, classes = np.random.default_rng(0), task.channels
    if task.card.kind == "triplets":
        return {
            "chance: the same score for all frames": iter([np.zeros((frames, classes))]),
            f"chance: random scores, mean of {DRAWS}": (random.random((frames, classes)) for _ in range(DRAWS)),
        }
    counts, one_hot = np.bincount(trained, minlength=classes), np.eye(classes)
    return {
        "chance: the training's most frequent phase": iter([one_hot[np.full(frames, counts.argmax())]]),
        f"chance: guesses as frequent as there, mean of {DRAWS}": (
            one_hot[random.choice(classes, frames, p=counts / counts.sum())] for _ in range(DRAWS)
        ),
    }


def scored(task: Task, answers: Array, truth: Array) -> Scores:
    """Score answers (N, C) for one video's frames with the task's metrics."""
    pairs = enumerate(zip(answers, truth, strict=True))
    return task.summarise([LabelScore("", n, answer[None], one[None]) for n, (answer, one) in pairs])


def blind_results(task: Task, test: Site, sites: Mapping[str, Site]) -> list[Result]:
    """Score answers without a look at the frames, on the left-out video and on the others' validation frames."""
    trained = np.concatenate([truth_of(site, "train", task) for site in sites.values()])

    def means(truth: Array) -> dict[str, dict[str, float]]:
        return {
            row: _mean([_numbers(scored(task, answers, truth)) for answers in given])
            for row, given in blind(task, len(truth), trained).items()
        }

    there = means(truth_of(test, "test", task))
    own = [means(truth_of(site, "validation", task)) for site in sites.values()]
    return [Result(row, test.name, 0, there[row], _mean([one[row] for one in own])) for row in there]


def truth_of(site: Site, split: str, task: Task) -> Array:
    """Return a split's targets, bool (N, C) of triplets or ids (N,) of phases, without reading frames."""
    chosen = samples(site, split, task.spec)
    dataset = SampleDataset(chosen, height=1, width=1, site=site)
    (target,) = task.spec.targets
    found = np.stack([dataset.targets(n)[target] for n in range(len(chosen))])
    return found.astype(bool) if found.ndim > 1 else found.astype(np.int64)


# ---- Runs


def job_of(task: str, row: str, seed: int, size: Mapping[str, int]) -> Job:
    """Return the shipped job with a row's changes; ``size`` may replace rounds, iterations and batch_size."""
    own, changes, rest = described_jobs(jobs_folder())[USES[task].job], ROWS[row], dict(size)
    rounds = {"rounds": rest.pop("rounds")} if "rounds" in rest else {}
    training = {**own["training"], **changes.get("training", {}), **rest, "seed": seed}
    return Job.from_json({**own, **changes, **rounds, "training": training})


def train_and_score(job: Job, sites: Mapping[str, Path], test: Site, file: Path) -> dict[str, Any]:
    """Train and score a run, or return the scores in ``file`` from an earlier call; keys as in `Result`.

    The run's folder, about 200 MB, is removed.
    """
    about = json.loads(json.dumps({"job": job.to_json(), "sites": sorted(sites)}))
    if file.is_file() and (found := json.loads(file.read_text(encoding="utf-8"))).items() >= about.items():
        return found
    began = time.monotonic()
    file.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=file.parent) as folder:
        server = run_together(job, sites, Path(folder), resume=False)
        held_out = _numbers(_score(server, test))
    own = _mean([_numbers(record) for record in server.records if record["kind"] == "final"])
    found = {**about, "held_out": held_out, "own": own, "seconds": time.monotonic() - began, "commit": commit()}
    write_json(file, found)
    return found


def _score(server: ServerRunner, site: Site) -> Scores:
    bench = set_up_site(server.job, site)
    bench.network.load_state_dict(load_weights(server.folder / "server" / "model.safetensors"))
    return evaluation.score_fully(
        bench.network, bench.task, samples(site, "test", bench.task.spec), size=bench.size, split="test"
    )


def _numbers(record: Scores) -> dict[str, float]:
    shown = {name for use in USES.values() for name in use.metrics}
    return {name: record[name]["mean"] for name in record if name in shown}


def _mean(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.mean(one[name] for one in found) for name in found[0]}


@contextmanager
def frames_kept() -> Iterator[None]:
    """Decode each frame once within this context (0.4 GB in all), although every round opens the data set again."""
    reader = find_reader(DATASET)
    reader.read_image = cache(reader.read_image)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del reader.read_image  # restore the class's method


def results_of(
    task: str, data: Path, out: Path, seeds: Sequence[int], size: Mapping[str, int]
) -> tuple[Task, list[Result]]:
    """Run all rows of a task, seed by seed; return the task, and each row's result on each video."""
    files = write_sites(data, out / "sites", task)
    tested = {video: load_site(file) for video, file in files["test"].items()}
    trained = {video: load_site(file) for video, file in files["train"].items()}
    first = next(iter(tested.values()))
    learnt = set_up_site(job_of(task, next(iter(ROWS)), seeds[0], size), first).task
    found = [one for video in tested for one in blind_results(learnt, tested[video], _others(trained, video))]
    for seed, video, row in product(seeds, tested, ROWS):
        file = out / "runs" / f"{task}-{video}-{list(ROWS).index(row)}-seed-{seed}.json"
        done = train_and_score(job_of(task, row, seed, size), _others(files["train"], video), tested[video], file)
        found.append(Result(row, video, seed, done["held_out"], done["own"]))
        print(f"{task}, {video} left out, seed {seed}, {row}: {done['held_out']}", flush=True)
    return learnt, found


def _others(sites: Mapping[str, T], video: str) -> dict[str, T]:
    return {name: site for name, site in sites.items() if name != video}


# ---- Tables


def table(metric: Metric, results: Sequence[Result]) -> str:
    """Return Markdown: each row's mean and population standard deviation over left-out videos, and each video's score.

    A video's score is the mean over seeds.
    """
    videos = list(dict.fromkeys(one.video for one in results))
    rows = []
    for row in dict.fromkeys(one.row for one in results):
        of = [[one for one in results if (one.row, one.video) == (row, video)] for video in videos]
        there = [metric.factor * statistics.mean(one.held_out[metric.name] for one in ones) for ones in of]
        own = [metric.factor * statistics.mean(one.own[metric.name] for one in ones) for ones in of]
        cells = [f"{value:.1f}" for value in there]
        spread = f"{statistics.mean(there):.1f} ± {statistics.pstdev(there):.1f}"
        rows.append((row, f"{statistics.mean(own):.1f}", spread, *cells))
    title = f"{metric.label}, {metric.unit}".rstrip(", ")
    return as_markdown(Table(title, ("", "own videos", "left-out video", *videos), tuple(rows)))


def main(argv: Sequence[str] | None = None) -> None:
    """Run unfinished rows; print the tables and write tables.md."""
    parser = argparse.ArgumentParser(prog="python -m evidence.real_videos", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="holds videos/ and labels/")
    parser.add_argument("--out", type=Path, required=True, help="gets sites, runs and tables.md")
    parser.add_argument("--seeds", default="1", help="with commas between; default: %(default)s")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="default: the job's")
    parser.add_argument("--tasks", default=",".join(USES), help="default: %(default)s")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    seeds, size = [int(seed) for seed in args.seeds.split(",")], {n: v for n in SIZES if (v := getattr(args, n))}
    tables = [f"Commit {commit()}, seeds {seeds}, {hardware()}, {size or 'sizes of the jobs'}; mean ± population std."]
    for name in args.tasks.split(","):
        with frames_kept():
            task, results = results_of(name, args.data, args.out, seeds, size)
        shown = {metric.name: metric for metric in task.metrics}
        tables += [table(shown[metric], results) for metric in USES[name].metrics]
    text = "\n\n".join(tables) + "\n"
    write_text(args.out / "tables.md", text)
    print("", text, sep="\n")


if __name__ == "__main__":
    main()
