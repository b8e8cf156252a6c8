"""Recipes of shipped weights: training stages, candidates, and the choice of a candidate.

A candidate is chosen on rendered looks that neither training nor the card uses, and on the real sites listed for the
choice. All other sites are scored once, after the choice.
"""

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import field

from shared_components.common import machine
from shared_components.common.atomic import write_json
from shared_components.common.schema import Schema, parse
from shared_components.core.initial_weights import RANDOM
from shared_components.core.shipped_weights import sha256_of
from shared_components.core.site_fingerprint import fingerprint
from shared_components.data.files.images import read_yaml_file
from shared_components.networks.checkpoints import save_weights
from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.weights.shipping import weights
from shared_components.weights.shipping.weights import Films, Tested, looks_to_test, real_sites, rendered_sites

FOLDER = Path(__file__).parent / "recipes"
CHOOSING = 1_500_000  # first number of the looks that choose a candidate; training uses smaller, the card larger
CHOICE, SCORES = "choice.json", "choice_scores.json"
Option = str | int | float | bool | list[str]


class Stage(Schema, frozen=True):
    """Training: options of `surgfl pretrain`, and the stage that provides the initial weights."""

    options: dict[str, Option]
    begins: str = RANDOM


class Recipe(Schema, frozen=True):
    """Training of the weights that bundles with the same network ship."""

    bundles: list[str]  # the first bundle's network is trained
    stages: dict[str, Stage]  # in order
    candidates: list[str]  # stages to choose from
    common: dict[str, Option] = field(default_factory=dict)  # options of `surgfl pretrain` for all stages
    unseen: int = 8  # looks per family that choose the candidate
    families: list[str] = field(default_factory=lambda: list(FAMILIES))


class Real(Schema, frozen=True):
    """site.yaml of real sites by their name in the card: sites that choose the candidate, and other sites."""

    choose: dict[str, str] = field(default_factory=dict)
    card: dict[str, str] = field(default_factory=dict)


def read_recipe(name: str) -> Recipe:
    """Read a recipe by name or path; raise ValueError if it does not exist or is invalid."""
    path = Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.yaml")))
        raise ValueError(f"recipe {name!r} does not exist; known recipes: {known}, or give a path to a .yaml file")
    recipe = parse(Recipe, read_yaml_file(path, error=ValueError), str(path))
    seen = [RANDOM]
    for stage, facts in recipe.stages.items():
        if facts.begins not in seen:
            raise ValueError(f"{path}: stage {stage} begins from {facts.begins!r}; name a stage above it, or {RANDOM}")
        seen.append(stage)
    if not recipe.candidates or not recipe.bundles:
        raise ValueError(f"{path}: candidates or bundles are missing; list at least one of each")
    if missing := [name for name in recipe.candidates if name not in recipe.stages]:
        raise ValueError(f"{path}: candidate {missing[0]!r} is no stage; stages: {', '.join(recipe.stages)}")
    return recipe


def read_real(path: Path | None) -> Real:
    """Read the real sites, with paths relative to the file; raise ValueError if the file is invalid."""
    if path is None:
        return Real()
    real = parse(Real, read_yaml_file(path, error=ValueError), str(path))
    if twice := sorted(set(real.choose) & set(real.card)):
        raise ValueError(f"{path}: {twice[0]} is under choose and card; keep it under choose, which is in the card too")
    return Real(*({name: str(path.parent / file) for name, file in s.items()} for s in (real.choose, real.card)))


def words_of(recipe: Recipe, name: str, folder: Path) -> list[str]:
    """Return the command-line arguments of `surgfl pretrain` for a stage in `folder/<name>`; lists repeat an option."""
    stage = recipe.stages[name]
    words = [recipe.bundles[0], "--out", str(folder / name)]
    if stage.begins != RANDOM:
        words += ["--start", str(folder / stage.begins / "model.safetensors")]
    for option, value in {**recipe.common, **stage.options}.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{option.replace('_', '-')}={item}" for item in values]
    return words


def line_of(recipe: Recipe, name: str) -> list[str]:
    """Return a stage and the stages before it, the last first."""
    line = [name]
    while (before := recipe.stages[line[-1]].begins) != RANDOM:
        line.append(before)
    return line


def choose(recipe: Recipe, folder: Path, real: Mapping[str, Path], *, films: Films | None = None) -> str:
    """Score the candidates, write `choice.json`, and return the best candidate; known scores are reused."""
    sites = real_sites(real)
    films = films or Films()
    files = {name: fingerprint(str(path), recipe.bundles[0]) for name, path in real.items()}
    wanted = {"unseen": recipe.unseen, "families": recipe.families, "films": asdict(films), "real": files}
    saved = json.loads((folder / SCORES).read_text(encoding="utf-8")) if (folder / SCORES).is_file() else {}
    same = all(saved.get(key) == value for key, value in wanted.items())  # the same looks and sites
    known: dict[str, Any] = saved["scores"] if same else {}
    scores = {}
    for name in recipe.candidates:
        key = f"{name} {sha256_of(folder / name / 'model.safetensors')}"
        if key not in known:
            known[key] = _scores(recipe, folder / name, sites, films)
            write_json(folder / SCORES, {**wanted, "scores": known})
        scores[name] = known[key]
    best = max(scores, key=lambda name: scores[name]["mean"])
    by = f"{recipe.unseen} unseen looks of each of {', '.join(recipe.families)}" + "".join(f", {name}" for name in real)
    facts = {"chosen": best, "candidates": recipe.candidates, "by": by, "scores": scores}
    write_json(folder / CHOICE, facts)
    return best


def _scores(recipe: Recipe, run: Path, sites: Sequence[Tested], films: Films) -> dict[str, Any]:
    """Return the first metric's mean for each group of looks and each real site, and "mean" (higher is better).

    "mean" gives all looks and all real sites half the weight each.
    """
    trained = weights.read_pretrained(run)
    task = trained.task()
    groups: dict[tuple[bool, str], list[float | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        half = Path(folder) / "model.safetensors"
        save_weights(half, weights.halved(trained.weights), trained.notes)
        network = weights.network_with(half, recipe.bundles[0], task.channels)
        network.to(machine.device())
        looks = looks_to_test(recipe.unseen, (), recipe.families, first=CHOOSING)
        rendered = rendered_sites(looks, Path(folder) / "sites", kind=task.card.kind, spec=task.spec, films=films)
        for tested in chain(rendered, sites):
            where = tested.name if tested.where == "real" else tested.where
            for record in weights.score(network, trained, tested):
                groups.setdefault((tested.where == "real", where), []).append(record[task.metrics[0].name]["mean"])
            print(f"{run.name}: scored {tested.name}", flush=True)
    known = {key: [value for value in values if value is not None] for key, values in groups.items()}
    means = {key: statistics.mean(values) for key, values in known.items() if values}
    halves = [[value for (real, _), value in means.items() if real == which] for which in (False, True)]
    if not means:
        raise ValueError(f"{run}: no frame of the choosing looks and sites can be scored; raise 'unseen'")
    sign = 1 if task.metrics[0].higher_is_better else -1
    mean = sign * statistics.mean(statistics.mean(half) for half in halves if half)
    return {"mean": mean, **{where: value for (_, where), value in means.items()}}
