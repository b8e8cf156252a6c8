"""Convert pre-trained weights to half precision, score them on held-out data and write the card."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.common import machine
from shared_components.core.bundle import load_bundle
from shared_components.core.evaluation import native_batches, score_batches
from shared_components.core.patches import controls
from shared_components.core.shipped_weights import sha256_of
from shared_components.core.task import Task, make_task
from shared_components.core.trained_model import network_arguments_of, with_wanted_classes
from shared_components.data.check import readable_samples
from shared_components.data.classes import CLASS_MAPS, name_of
from shared_components.data.samples import LABELLED, SampleSpec
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import load_site
from shared_components.data.splits import SEEN, add_seen_videos
from shared_components.networks.bundle_config import build_network, weightless
from shared_components.networks.checkpoints import CheckpointError, load_into, load_metadata, load_weights, tensors_of
from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.scenes.looks import LOOKS
from shared_components.scenes.site import layouts_for, write_site
from shared_components.weights.shipping.job_runs import SERVER, facts_of_job, is_job_run

LARGEST = float(torch.finfo(torch.float16).max)  # 65504
HEAVIEST = 14_000_000  # bytes of a file that a repository of code still carries
HEADER = ("bundle", "task", "outputs", "height", "width", "numbers")
UNSEEN = 2_000_000  # looks from this number on occur neither in a pre-training nor in its own checks
SEED = 7_000_000
SPLIT = "test"
COARSEST = CLASS_MAPS["foreground"]
FACTS = ("command", "commit", "seed", "hardware", "threads", "seconds", "steps", "frames", "sizes")


@dataclass(frozen=True)
class Pretrained:
    """A pre-training's float32 weights by name, the header of its model, its pretraining.json, and the model's hash."""

    weights: Mapping[str, Tensor]
    notes: Mapping[str, str]
    facts: Mapping[str, Any]
    sha256: str

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of its outputs, such as classes."""
        return tuple(name for name in self.notes["outputs"].split(",") if name)

    def task(self, classes: Sequence[str] = ()) -> Task:
        """Return the task that it has learnt, or the same task with other classes."""
        numbers = json.loads(self.notes["numbers"])
        return make_task(self.notes["task"], numbers, classes=classes or self.outputs)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) that it was trained at last."""
        return int(self.notes["height"]), int(self.notes["width"])


def read_pretrained(run: Path) -> Pretrained:
    """Read the folder of a pre-training, or of a federated job's run: then its model for outsiders.

    Raises:
        CheckpointError: a file is missing or damaged, or the model's header does not say what it is.
    """
    of_job = is_job_run(run)
    model, facts = run / (SERVER if of_job else "") / "model.safetensors", run / "pretraining.json"
    weights, notes = load_weights(model), load_metadata(model)
    found = facts_of_job(run) if of_job else _read_facts(facts)
    for path, keys, given in ((model, HEADER, notes), (facts, FACTS, found)):
        if missing := [key for key in keys if key not in given]:
            raise CheckpointError(f"{path} does not say its {missing[0]}; give a folder that `surgfl pretrain` wrote")
    return Pretrained(weights, notes, found, sha256_of(model))


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}); give a folder that `surgfl pretrain` wrote, or of a job's run"
        ) from error


def with_data(trained: Pretrained, data: str, seen: Sequence[Path]) -> Pretrained:
    """Return a training with what a person says of its data, in its facts and its model's header.

    Args:
        data: In words; empty: `surgfl pretrain` renders its own. A federated job's run must have them.
        seen: Descriptions of sites whose training videos the weights have seen, which no later test may hold.

    Raises:
        ValueError: a job's run has no words on its data, or a pre-training has them.
        SiteError: a description is wrong.
    """
    if "job" in trained.facts and not data:
        raise ValueError(
            "--data is missing: the run is of a federated job, whose sites do not say what they trained on; write it, "
            "such as --data 'nine rendered sites'"
        )
    if data and "job" not in trained.facts:
        raise ValueError(
            f"--data is {data!r}, and the weights are of `surgfl pretrain`, which recorded its rendered frames; "
            "leave --data out"
        )
    data_note = {"data": data} if data else {}
    notes = {**trained.notes, **data_note, **add_seen_videos(trained.notes.get(SEEN, ""), map(load_site, seen))}
    return replace(trained, notes=notes, facts={**trained.facts, **data_note})


def read_stages(runs: Sequence[Path]) -> list[Pretrained]:
    """Read pre-trainings of which each began from the weights of the next; the last began at random.

    Raises:
        CheckpointError: As of `read_pretrained`; or a stage began from other weights than the next one's.
    """
    stages = [read_pretrained(run) for run in runs]
    for run, stage, before in zip(runs, stages, stages[1:], strict=False):
        if stage.facts.get("start", {}).get("sha256") != before.sha256:
            raise CheckpointError(
                f"{run} did not begin from the weights of {runs[runs.index(run) + 1]}; give to --before the run whose "
                "model its --start named"
            )
    return stages


def halved(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in float16; whole numbers stay as they are.

    Raises:
        CheckpointError: a number is not finite, or larger than float16 can hold.
    """
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        if value.is_floating_point() and not bool((value.abs() <= LARGEST).all()):
            raise CheckpointError(
                f"{name} holds numbers that are not finite or above {LARGEST:.0f}, which half precision cannot hold; "
                "train again"
            )
        found[name] = value.half() if value.is_floating_point() else value
    return found


def network_with(weights: Path, bundle: str, channels: int) -> nn.Module:
    """Return a bundle's network with the weights of a file, in float32.

    Raises:
        ValueError: there is no such bundle, or the weights are of another network.
    """
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
    before: Sequence[Pretrained] = (),
    shipped_before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return `model.json`: all of `pretraining.json`, without absolute paths, the header, the hash, and the scores.

    The pre-training's own scores are its `checks`; of those `before` it, the last first, `FACTS` are kept, and of those
    in the card of the weights that the bundle `shipped_before`, if the first of them began from these.
    """
    facts = {**_told(trained), "checks": trained.facts.get("scores", {})}
    shipped = {"header": dict(trained.notes), "precision": "float16", "sha256": sha256, "scores": scores}
    stages = [_stage(_told(one)) for one in before]
    first = [facts, *stages][-1]
    if shipped_before and first["start"].get("sha256") == shipped_before["sha256"]:
        stages += [_stage(shipped_before), *shipped_before.get("before", [])]
    metrics = [metric.to_json() for metric in trained.task().metrics]
    return facts | shipped | {"before": stages, "metric": metrics[0], "metrics": metrics}


def _stage(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: facts[key] for key in (*FACTS, "start", "job") if key != "job" or key in facts}


def _told(trained: Pretrained) -> dict[str, Any]:
    """Return a pre-training's facts without absolute paths."""
    facts = {"start": {"start": "random"}, **trained.facts}
    return facts | ({"command": without_folders(facts["command"])} if isinstance(facts.get("command"), str) else {})


def card_text(facts: Mapping[str, Any]) -> str:
    """Return a card as it stands in `model.json`."""
    return json.dumps(facts, indent=1, ensure_ascii=False) + "\n"


def without_folders(command: str) -> str:
    """Return a command with nothing but the last name of every absolute path."""
    words = []
    for word in shlex.split(command):
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        words.append(option + equals + (Path(value).name if value.startswith(("/", "~")) else value))
    return shlex.join(words)


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write files, with their folders, under other names, then rename them all; an error restores the old ones."""
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
            if old is None:
                path.unlink()
            else:
                path.write_bytes(old)
        raise
    finally:
        for path in beside.values():
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Films:
    """Number and size of the videos that are rendered of every look."""

    videos: int = 2
    frames: int = 6
    height: int = 256
    width: int = 320


@dataclass(frozen=True)
class Tested:
    """A site on which a model is scored; `where` is "named look", "real", or as in `looks_to_test`."""

    name: str
    where: str
    site: Site


def looks_to_test(
    unseen: int, named: Sequence[str] = LOOKS, families: Sequence[str] = tuple(FAMILIES), *, first: int = UNSEEN
) -> list[tuple[str, str]]:
    """Return every named look and some of each family that no pre-training draws, as (look, where).

    Random looks are at "unseen look", those of another family at "unseen <family> look"; `first` is their first number.
    """
    where = {family: "unseen look" if family == "random" else f"unseen {family} look" for family in families}
    drawn = [(f"{family}-{first + number}", where[family]) for family in families for number in range(unseen)]
    return [*((look, "named look") for look in named), *drawn]


def rendered_sites(
    looks: Iterable[tuple[str, str]], folder: Path, *, kind: str, spec: SampleSpec = LABELLED, films: Films = Films()
) -> Iterator[Tested]:
    """Render a small test site of every look into a folder, lazily; its seed follows from its place.

    `kind` is the task's, whose `spec` decides on clips.
    """
    for number, (look, where) in enumerate(looks):
        path = write_site(
            folder / look,
            look=look,
            seed=SEED + number,
            videos={SPLIT: films.videos},
            frames_per_video=films.frames,
            height=films.height,
            width=films.width,
            layout=layouts_for(kind)[0],
            task=kind,
            clip=spec.frames,
            interval=spec.interval,
            dense=spec.targets_of == "all",
        )
        yield Tested(look, where, load_site(path, name=look))


def real_sites(files: Mapping[str, Path]) -> list[Tested]:
    """Open sites by the name that the card will have for them.

    Raises:
        SiteError: a description is wrong, or has no test split.
    """
    found = [Tested(name, "real", load_site(path, name=name)) for name, path in files.items()]
    for one in found:
        if not one.site.split.get(SPLIT):
            raise SiteError(f"{one.site.path}: has no split {SPLIT!r}, on which weights are scored; list its videos")
    return found


def score(network: nn.Module, trained: Pretrained, tested: Tested) -> Iterator[dict[str, Any]]:
    """Score a model on a site's test split, at the labels' own size; a real site's classes also merged to one.

    Raises:
        SiteError: The site's data are bad.
        ValueError: The model's classes cannot be read as the site's.
    """
    own = tested.site.classes if trained.notes["task"] == "segmentation" else ()
    for classes in dict.fromkeys([own, COARSEST] if own and tested.where == "real" else [own]):
        yield _scored(network, trained, replace(tested, site=replace(tested.site, classes=classes)))


def _scored(network: nn.Module, trained: Pretrained, tested: Tested) -> dict[str, Any]:
    site = tested.site
    task = trained.task(site.classes)
    if site.classes:
        network = with_wanted_classes(network, trained.outputs, site.classes)
    kept, _ = readable_samples(site, SPLIT, spec=task.spec)

    def numbers(of: nn.Module) -> dict[str, Any]:
        found = score_batches(of, task, native_batches(kept, trained.size, task))
        return {metric.name: found[metric.name] for metric in task.metrics if metric.name in found}

    about = {"name": tested.name, "where": tested.where, "classes": name_of(site.classes), "frames": len(kept)}
    beside = {name: numbers(control) for name, control in _controls(network, trained).items()}
    return about | numbers(network) | ({"controls": beside} if beside else {})


def _controls(network: nn.Module, trained: Pretrained) -> dict[str, nn.Module]:
    """Return what a network that restores hidden patches is scored beside, see `patches.controls`."""
    if trained.notes["task"] != "reconstruction":
        return {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(trained.facts["seed"]))
        return {name: control.to(machine.device()).eval() for name, control in controls(network).items()}
