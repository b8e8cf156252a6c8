"""Convert trained weights to half precision, score them on held-out data and write the card."""

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.common import machine
from shared_components.core.bundle import load_bundle
from shared_components.core.evaluation import native_batches, score_batches
from shared_components.core.image_patches import controls
from shared_components.core.shipped_weights import sha256_of
from shared_components.core.task import Task, make_task
from shared_components.core.trained_model import network_arguments_of, with_wanted_classes
from shared_components.data.check import readable_samples
from shared_components.data.files.classes import CLASS_MAPS, name_of
from shared_components.data.samples import LABELLED, SampleSpec
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import load_site
from shared_components.data.splits import SEEN, add_seen_videos
from shared_components.federation.messages import Job
from shared_components.federation.runs.run_folder import DESCRIPTION
from shared_components.federation.runs.store import RECORDS
from shared_components.networks.bundle_config import build_network, weightless
from shared_components.networks.checkpoints import CheckpointError, load_into, load_metadata, load_weights, tensors_of
from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.scenes.looks import LOOKS
from shared_components.scenes.site import layouts_for, write_site

LARGEST = float(torch.finfo(torch.float16).max)  # 65504
HEAVIEST = 14_000_000  # maximum bytes of a weight file in the repository
HEADER = ("bundle", "task", "outputs", "height", "width", "numbers")
UNSEEN = 2_000_000  # looks from this number on occur in no pre-training and in none of its checks
SEED = 7_000_000
SPLIT = "test"
COARSEST = CLASS_MAPS["foreground"]
FACTS = ("command", "commit", "seed", "hardware", "threads", "seconds", "steps", "frames", "sizes")
_SERVER = "server"  # folder of a job's model
_OF_JOB = ("method", "arguments", "training", "tasks", "network", "rounds", "synthetic")


@dataclass(frozen=True)
class Pretrained:
    """A training's float32 weights, model header, pretraining.json, and hash of the model file."""

    weights: Mapping[str, Tensor]
    notes: Mapping[str, str]
    facts: Mapping[str, Any]
    sha256: str

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name in self.notes["outputs"].split(",") if name)

    def task(self, classes: Sequence[str] = ()) -> Task:
        return make_task(self.notes["task"], json.loads(self.notes["numbers"]), classes=classes or self.outputs)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the last phase."""
        return int(self.notes["height"]), int(self.notes["width"])


def read_pretrained(run: Path) -> Pretrained:
    """Read a pre-training or a job's run with its model for outside sites; CheckpointError for damaged files."""
    of_job = (run / DESCRIPTION).is_file()
    model, file = run / (_SERVER if of_job else "") / "model.safetensors", run / "pretraining.json"
    weights, notes = load_weights(model), load_metadata(model)
    facts = facts_of_job(run) if of_job else _read_facts(file)
    for path, keys, values in ((model, HEADER, notes), (file, FACTS, facts)):
        if missing := [key for key in keys if key not in values]:
            raise CheckpointError(f"{path} contains no {missing[0]!r}; give a folder that `surgfl pretrain` wrote")
    return Pretrained(weights, notes, facts, sha256_of(model))


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}); give a folder that `surgfl pretrain` wrote, or of a job's run"
        ) from error


def facts_of_job(run: Path) -> dict[str, Any]:
    """Return `FACTS` of a finished job's run, summed over sites and rounds, with its settings and initial weights.

    Raise CheckpointError if the run has not finished or its files cannot be read.
    """
    try:
        described = json.loads((run / DESCRIPTION).read_text(encoding="utf-8"))
        lines = (run / _SERVER / RECORDS).read_text(encoding="utf-8").splitlines()
        return _facts_of_job(described, [json.loads(line) for line in lines], run)
    except CheckpointError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(
            f"{run}: the records of this run cannot be read ({error!r}); name the folder of a finished run, such as "
            "ws-state/fl_endovit/latest"
        ) from error


def _facts_of_job(described: dict[str, Any], records: list[dict[str, Any]], run: Path) -> dict[str, Any]:
    if not any(record["kind"] == "outsider" for record in records):
        raise CheckpointError(f"{run}: this run has not finished; resume it, or name another")
    job = Job.from_json(described["job"])
    training = job.open_bundle().training
    trained = [record for record in records if record["kind"] == "site" and record.get("loss")]
    site_rounds = [training.for_samples(record["samples"]) for record in trained]
    steps = sum(settings.steps for settings in site_rounds)
    return {
        "bundle": job.bundle,
        "command": f"nvflare simulator nvflare_jobs/{job.name} -w ws -n {len(described['sites'])}",
        **{key: described[key] for key in ("commit", "seed", "hardware")},
        "threads": None,
        "seconds": sum(record.get("seconds_wall", 0.0) for record in records if record["kind"] == "aggregation"),
        "steps": steps,
        "frames": sum(settings.iterations * settings.batch_size for settings in site_rounds),
        "sizes": [f"{training.height}x{training.width}:{steps}"],
        "settings": {"start": described["start"]["start"]},
        "job": {key: described["job"][key] for key in _OF_JOB if described["job"][key]},
        "sites": len(described["sites"]),
        "start": described["start"],
    }


def with_data(trained: Pretrained, data: str, seen: Sequence[Path]) -> Pretrained:
    """Add a description of the training data, and the training videos of `seen` sites, to facts and header.

    Raise ValueError if the description is missing for a job, or present for a pre-training, which renders its data.
    """
    if "job" in trained.facts and not data:
        raise ValueError(
            "--data is missing: sites of a federated job do not report their training data; describe it, such as "
            "--data 'nine rendered sites'"
        )
    if data and "job" not in trained.facts:
        raise ValueError(f"--data is {data!r}, but `surgfl pretrain` has recorded its frames; leave --data out")
    data_note = {"data": data} if data else {}
    notes = {**trained.notes, **data_note, **add_seen_videos(trained.notes.get(SEEN, ""), map(load_site, seen))}
    return replace(trained, notes=notes, facts={**trained.facts, **data_note})


def read_stages(runs: Sequence[Path]) -> list[Pretrained]:
    """Read trainings, the last first; raise CheckpointError unless each started from the weights of the next one."""
    stages = [read_pretrained(run) for run in runs]
    for number, (stage, before) in enumerate(pairwise(stages)):
        if stage.facts.get("start", {}).get("sha256") != before.sha256:
            raise CheckpointError(
                f"{runs[number]} did not start from the weights of {runs[number + 1]}; set --before to the run of its "
                "--start"
            )
    return stages


def halved(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights to float16; raise CheckpointError for numbers that are not finite or too large."""
    for name, value in weights.items():
        if value.is_floating_point() and not bool((value.abs() <= LARGEST).all()):
            raise CheckpointError(
                f"{name} contains numbers that are not finite or above {LARGEST:.0f}, the maximum of half precision; "
                "train again"
            )
    return {name: value.half() if value.is_floating_point() else value for name, value in weights.items()}


def network_with(weights: Path, bundle: str, channels: int) -> nn.Module:
    """Build a bundle's network with the weights of a file, in float32; raise ValueError if they do not fit."""
    definition = load_bundle(bundle, network=network_arguments_of(weights)).network
    tensors_of(weightless(definition, out_channels=channels), load_weights(weights), weights)  # before it takes memory
    network = build_network(definition, out_channels=channels)
    load_into(network, weights)
    return network.eval()


def card_of(
    trained: Pretrained,
    *,
    sha256: str,
    scores: list[dict[str, Any]],
    before: Sequence[Pretrained] = (),  # earlier trainings, the last first, recorded by their `FACTS`
    shipped_before: Mapping[str, Any] | None = None,  # card with more stages, if the first started from its weights
) -> dict[str, Any]:
    """Return the content of `model.json`: `pretraining.json` without absolute paths, header, hash and scores."""
    facts = {**_portable_facts(trained), "checks": trained.facts.get("scores", {})}
    shipped = {"header": dict(trained.notes), "precision": "float16", "sha256": sha256, "scores": scores}
    stages = [_stage(_portable_facts(stage)) for stage in before]
    first = [facts, *stages][-1]
    if shipped_before and first["start"].get("sha256") == shipped_before["sha256"]:
        stages += [_stage(shipped_before), *shipped_before.get("before", [])]
    metrics = [metric.to_json() for metric in trained.task().metrics]
    return facts | shipped | {"before": stages, "metric": metrics[0], "metrics": metrics}


def _stage(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: facts[key] for key in (*FACTS, "start", "job") if key != "job" or key in facts}


def _portable_facts(trained: Pretrained) -> dict[str, Any]:
    facts = {"start": {"start": "random"}, **trained.facts}
    return facts | ({"command": without_folders(facts["command"])} if isinstance(facts.get("command"), str) else {})


def card_text(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=1, ensure_ascii=False) + "\n"


def without_folders(command: str) -> str:
    """Shorten each absolute path in a command to its last name."""
    words = []
    for word in shlex.split(command):
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        words.append(option + equals + (Path(value).name if value.startswith(("/", "~")) else value))
    return shlex.join(words)


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write files under temporary names, then rename all of them; an error restores the previous files."""
    beside = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    before = {path: path.read_bytes() if path.is_file() else None for path in contents}
    renamed: list[Path] = []
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            beside[path].write_bytes(content)
        for path, new in beside.items():
            os.replace(new, path)
            renamed.append(path)
    except BaseException:
        for path in renamed:
            old = before[path]
            path.unlink() if old is None else path.write_bytes(old)
        raise
    finally:
        for path in beside.values():
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Films:
    """Number and size of the videos to render per look."""

    videos: int = 2
    frames: int = 6
    height: int = 256
    width: int = 320


@dataclass(frozen=True)
class Tested:
    """Site to score a model on; `where` is "real" or a group of looks, see `looks_to_test`."""

    name: str
    where: str
    site: Site


def looks_to_test(
    unseen: int, named: Sequence[str] = LOOKS, families: Sequence[str] = tuple(FAMILIES), *, first: int = UNSEEN
) -> list[tuple[str, str]]:
    """Return named looks and `unseen` looks of each family, from number `first`, as (look, group).

    Groups are "named look", "unseen look" for random looks, and "unseen <family> look".
    """
    where = {family: "unseen look" if family == "random" else f"unseen {family} look" for family in families}
    drawn = [(f"{family}-{first + number}", where[family]) for family in families for number in range(unseen)]
    return [*((look, "named look") for look in named), *drawn]


def rendered_sites(
    looks: Iterable[tuple[str, str]], folder: Path, *, kind: str, spec: SampleSpec = LABELLED, films: Films = Films()
) -> Iterator[Tested]:
    """Render a small test site per look, lazily; the seed follows from the position. `kind` is the kind of task."""
    for number, (look, where) in enumerate(looks):
        path = write_site(
            folder / look, look=look, seed=SEED + number, videos={SPLIT: films.videos}, frames_per_video=films.frames,
            height=films.height, width=films.width, layout=layouts_for(kind)[0], task=kind,
            clip=spec.frames, interval=spec.interval, dense=spec.targets_of == "all",
        )  # fmt: skip
        yield Tested(look, where, load_site(path, name=look))


def real_sites(files: Mapping[str, Path]) -> list[Tested]:
    """Open real sites by their name in the card; raise SiteError for an invalid site or one without a test split."""
    sites = [Tested(name, "real", load_site(path, name=name)) for name, path in files.items()]
    for tested in sites:
        if not tested.site.split.get(SPLIT):
            raise SiteError(f"{tested.site.path}: split {SPLIT!r} is missing; list the videos to score on")
    return sites


def score(network: nn.Module, trained: Pretrained, tested: Tested) -> Iterator[dict[str, Any]]:
    """Score a model on a site's test split at the labels' size; real sites also with all classes merged.

    Raise ValueError if the data are bad or the model's classes cannot be mapped to the site's classes.
    """
    own = tested.site.classes if trained.notes["task"] == "segmentation" else ()
    for classes in dict.fromkeys([own, COARSEST] if own and tested.where == "real" else [own]):
        yield _score(network, trained, replace(tested, site=replace(tested.site, classes=classes)))


def _score(network: nn.Module, trained: Pretrained, tested: Tested) -> dict[str, Any]:
    site = tested.site
    task = trained.task(site.classes)
    if site.classes:
        network = with_wanted_classes(network, trained.outputs, site.classes)
    samples, _ = readable_samples(site, SPLIT, spec=task.spec)

    def scores(scored: nn.Module) -> dict[str, Any]:
        by_metric = score_batches(scored, task, native_batches(samples, trained.size, task))
        return {metric.name: by_metric[metric.name] for metric in task.metrics if metric.name in by_metric}

    record = {"name": tested.name, "where": tested.where, "classes": name_of(site.classes), "frames": len(samples)}
    of_controls = {name: scores(control) for name, control in _controls(network, trained).items()}
    return record | scores(network) | ({"controls": of_controls} if of_controls else {})


def _controls(network: nn.Module, trained: Pretrained) -> dict[str, nn.Module]:
    """Return controls for a network that restores hidden patches, see `patches.controls`."""
    if trained.notes["task"] != "reconstruction":
        return {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(trained.facts["seed"]))
        return {name: control.to(machine.device()).eval() for name, control in controls(network).items()}
