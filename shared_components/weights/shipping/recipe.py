"""Recipes of shipped weights: training stages, candidates, and the choice of a candidate.

A candidate is chosen on rendered looks that are used neither for training nor for the card, and on the real sites named
for the choice. All other sites are scored once, after the choice.
"""

from __future__ import annotations

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
from shared_components.data.files import read_yaml_file
from shared_components.networks.checkpoints import save_weights
from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.weights.shipping.weights import (
    Films,
    Tested,
    halved,
    looks_to_test,
    network_with,
    read_pretrained,
    real_sites,
    rendered_sites,
    score,
)

FOLDER = Path(__file__).parent / "recipes"
CHOOSING = 1_500_000
"""First number of the looks that choose a candidate; training uses smaller numbers, the card larger ones."""
CHOICE, SCORES = "choice.json", "choice_scores.json"
Option = str | int | float | bool | list[str]


class Stage(Schema, frozen=True):
    """A training: the stage it starts from, and options of `surgfl pretrain` by name."""

    options: dict[str, Option]
    begins: str = RANDOM


class Recipe(Schema, frozen=True):
    """Training of the weights that bundles with one network ship.

    Attributes:
        bundles: bundles that ship the weights; the network of the first one is trained.
        common: options of `surgfl pretrain` of all stages.
        stages: trainings by name, in order; each may start from an earlier stage.
        candidates: stages to choose from.
        unseen: number of looks per family that choose the candidate. families: the families.
    """

    bundles: list[str]
    stages: dict[str, Stage]
    candidates: list[str]
    common: dict[str, Option] = field(default_factory=dict)
    unseen: int = 8
    families: list[str] = field(default_factory=lambda: list(FAMILIES))


class Real(Schema, frozen=True):
    """site.yaml of real sites by their name in the card: of those that choose, and of the others."""

    choose: dict[str, str] = field(default_factory=dict)
    card: dict[str, str] = field(default_factory=dict)


def read_recipe(name: str) -> Recipe:
    """Read a recipe by its name or path.

    Raises:
        ValueError: There is none, it is no recipe, or a stage or candidate is not defined before it is used.
    """
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
        raise ValueError(f"{path}: names no candidate or no bundle; list at least one of each")
    if missing := [one for one in recipe.candidates if one not in recipe.stages]:
        raise ValueError(f"{path}: candidate {missing[0]!r} is no stage; stages: {', '.join(recipe.stages)}")
    return recipe


def read_real(path: Path | None) -> Real:
    """Read the real sites; relative paths in the file are relative to it. ValueError where it or a path is wrong."""
    if path is None:
        return Real()
    found = parse(Real, read_yaml_file(path, error=ValueError), str(path))
    if twice := sorted(set(found.choose) & set(found.card)):
        raise ValueError(f"{path}: {twice[0]} is under choose and card; name it once, what chooses is in the card, too")
    placed = ({name: str(path.parent / file) for name, file in sites.items()} for sites in (found.choose, found.card))
    return Real(*placed)


def words_of(recipe: Recipe, name: str, folder: Path) -> list[str]:
    """Return the arguments of `surgfl pretrain` for a stage in `folder/<name>`; lists repeat an option."""
    stage = recipe.stages[name]
    words = [recipe.bundles[0], "--out", str(folder / name)]
    if stage.begins != RANDOM:
        words += ["--start", str(folder / stage.begins / "model.safetensors")]
    for option, value in {**recipe.common, **stage.options}.items():
        for one in value if isinstance(value, list) else [value]:
            words += [f"--{option.replace('_', '-')}={one}"]
    return words


def line_of(recipe: Recipe, name: str) -> list[str]:
    """Return a stage and those before it, the last first."""
    found = [name]
    while (before := recipe.stages[found[-1]].begins) != RANDOM:
        found.append(before)
    return found


def choose(recipe: Recipe, folder: Path, real: Mapping[str, Path], *, films: Films | None = None) -> str:
    """Score the candidates, write `choice.json`, and return the best one's name.

    Scores that are there already, of the same weights and sites, are not taken again.
    """
    sites = real_sites(real)
    films = films or Films()
    files = {name: fingerprint(str(path), recipe.bundles[0]) for name, path in real.items()}
    wanted = {"unseen": recipe.unseen, "families": recipe.families, "films": asdict(films), "real": files}
    known = _known_scores(folder / SCORES, wanted)
    found = {}
    for name in recipe.candidates:
        key = f"{name} {sha256_of(folder / name / 'model.safetensors')}"
        if key not in known:
            known[key] = _scores(recipe, folder / name, sites, films)
            write_json(folder / SCORES, {**wanted, "scores": known})
        found[name] = known[key]
    best = max(found, key=lambda name: found[name]["mean"])
    by = f"{recipe.unseen} unseen looks of each of {', '.join(recipe.families)}" + "".join(f", {name}" for name in real)
    facts = {"chosen": best, "candidates": recipe.candidates, "by": by, "scores": found}
    write_json(folder / CHOICE, facts)
    return best


def _known_scores(path: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores that were taken at the same looks and sites; none where they are of others."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found["scores"] if all(found.get(key) == value for key, value in wanted.items()) else {}


def _scores(recipe: Recipe, run: Path, sites: Sequence[Tested], films: Films) -> dict[str, Any]:
    """Return the first metric's mean over each kind of unseen looks and at each real site, and "mean": more is better.

    That is the mean of all looks and of all real sites, of which both count half.
    """
    trained = read_pretrained(run)
    task = trained.task()
    groups: dict[tuple[bool, str], list[float | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        half = Path(folder) / "model.safetensors"
        save_weights(half, halved(trained.weights), trained.notes)
        network = network_with(half, recipe.bundles[0], task.channels)
        network.to(machine.device())
        looks = looks_to_test(recipe.unseen, (), recipe.families, first=CHOOSING)
        rendered = rendered_sites(looks, Path(folder) / "sites", kind=task.card.kind, spec=task.spec, films=films)
        for tested in chain(rendered, sites):
            where = tested.name if tested.where == "real" else tested.where
            for record in score(network, trained, tested):
                groups.setdefault((tested.where == "real", where), []).append(record[task.metrics[0].name]["mean"])
            print(f"{run.name}: scored {tested.name}", flush=True)
    known = {key: [value for value in values if value is not None] for key, values in groups.items()}
    means = {key: statistics.mean(values) for key, values in known.items() if values}
    halves = [[value for (real, _), value in means.items() if real == which] for which in (False, True)]
    if not means:
        raise ValueError(f"{run}: no frame of the looks and sites that choose has anything to score; raise 'unseen'")
    sign = 1 if task.metrics[0].higher_is_better else -1
    mean = sign * statistics.mean(statistics.mean(half) for half in halves if half)
    return {"mean": mean, **{where: value for (_, where), value in means.items()}}
