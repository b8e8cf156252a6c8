"""A recipe trains, chooses and ships; it resumes, and errors are reported before any training."""

import argparse
import json
import re

import pytest
import yaml

from shared_components.cli import main
from shared_components.commands import pretrain, ship, weights
from shared_components.core.shipped_weights import sha256_of
from shared_components.scenes.site import write_site
from shared_components.weights.pretraining import train
from shared_components.weights.pretraining.learner import Learner
from shared_components.weights.pretraining.stream import RESERVED
from shared_components.weights.shipping import recipe as recipes
from shared_components.weights.shipping.recipe import FOLDER, choose, line_of, read_real, read_recipe, words_of
from shared_components.weights.shipping.weights import UNSEEN, Films

STAGES = {
    "first": {"options": {"size": ["64x64:2"], "seed": 1}},
    "second": {"begins": "first", "options": {"size": ["64x96:2"], "seed": 2}},
    "third": {"begins": "first", "options": {"size": ["64x96:2"], "seed": 3}},
}
TINY = {
    "bundles": ["one", "two"], "stages": STAGES, "candidates": ["second", "third"], "unseen": 1,
    "families": ["surgery"],
    "common": {"looks": "surgery-*,rose", "batch_size": 2, "frames": 2, "precision": "float32", "threads": 1},
}  # fmt: skip


@pytest.fixture
def recipe(tmp_path):
    """Return a function that writes a recipe, with changes, and returns its path."""

    def written(**changes) -> str:
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(TINY | changes))
        return str(path)

    return written


def test_a_recipe_trains_chooses_and_ships_once(recipe, toy_bundles, tmp_path, monkeypatch, capsys):
    real = write_site(tmp_path / "a", look="ivory", seed=3, videos={"test": 1}, frames_per_video=2, height=64, width=96)
    (tmp_path / "real.yaml").write_text("choose: {A: a/site.yaml}\ncard: {B: a/site.yaml}\n")
    shipped = []
    for name, value in (("RANDOM_LOOKS", 1), ("LOOKS", ("rose",))):
        monkeypatch.setattr(train, name, value)
    monkeypatch.setattr(recipes, "Films", lambda: Films(1, 6, 64, 96))
    monkeypatch.setattr(ship, "run", lambda args: shipped.append(args) or 0)
    words = ["weights", recipe(), "--out", str(tmp_path / "out"), "--real", str(tmp_path / "real.yaml")]
    assert main(words) == 0
    facts = [json.loads((tmp_path / "out" / name / "pretraining.json").read_text()) for name in STAGES]
    assert [fact["steps"] for fact in facts] == [2, 2, 2] and [fact["seed"] for fact in facts] == [1, 2, 3]
    first = sha256_of(tmp_path / "out" / "first" / "model.safetensors")
    assert [fact["start"].get("sha256") for fact in facts] == ["", first, first]
    assert set(facts[0]["scores"]) == {"surgery", "trained", "named"}
    choice = json.loads((tmp_path / "out" / "choice.json").read_text())
    result = choice["scores"]
    assert choice["chosen"] == max(result, key=lambda name: result[name]["mean"])
    assert choice["by"] == "1 unseen looks of each of surgery, A"
    second = result["second"]
    assert set(second) == {"mean", "unseen surgery look", "A"}
    assert second["mean"] == pytest.approx((second["unseen surgery look"] + second["A"]) / 2)
    (args,) = shipped
    assert args.pretrained.name == choice["chosen"] and [run.name for run in args.before] == ["first"]
    assert args.bundle == ["one", "two"] and args.real == [f"A={real}", f"B={real}"]
    assert args.choice == tmp_path / "out" / "choice.json"

    for owner, name in ((Learner, "step"), (recipes, "_scores")):
        monkeypatch.setattr(owner, name, lambda *_: pytest.fail("was done before"))
    assert main([*words, "--no-ship"]) == 0 and len(shipped) == 1


def test_a_stop_ends_the_recipe_and_nothing_is_chosen(recipe, toy_bundles, tmp_path, monkeypatch):
    codes = iter((0, 130))
    monkeypatch.setattr(pretrain, "run", lambda args: next(codes))
    monkeypatch.setattr("shared_components.weights.shipping.recipe.choose", lambda *_: pytest.fail("chosen too early"))
    assert main(["weights", recipe(), "--out", str(tmp_path / "out")]) == 130


def test_other_weights_or_other_sites_are_scored_anew(recipe, tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(recipes, "_scores", lambda made, run, sites, films: taken.append(run.name) or {"mean": 0.5})
    for name in ("second", "third"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    for _ in range(2):
        choose(read_recipe(recipe()), tmp_path, {})
    assert taken == ["second", "third"]
    (tmp_path / "third" / "model.safetensors").write_bytes(b"trained on")
    choose(read_recipe(recipe()), tmp_path, {})
    choose(read_recipe(recipe(unseen=2)), tmp_path, {})
    assert taken == ["second", "third", "third", "second", "third"]
    real = write_site(tmp_path / "a", look="rose", seed=1, videos={"test": 1}, frames_per_video=1, height=64, width=64)
    for change in ("", "# the labels were corrected"):
        real.write_text(real.read_text() + change)
        for _ in range(2):
            choose(read_recipe(recipe(candidates=["third"])), tmp_path, {"OP1": real})
    assert taken[5:] == ["third", "third"]


def test_choosing_looks_are_new_sites_are_named_once_and_unknown_recipes_list_the_known(tmp_path):
    assert RESERVED + train.RANDOM_LOOKS <= recipes.CHOOSING <= UNSEEN - 1000
    (tmp_path / "real.yaml").write_text("choose: {A: a.yaml}\ncard: {A: a.yaml}\n")
    with pytest.raises(ValueError, match="A is under choose and card"):
        read_real(tmp_path / "real.yaml")
    with pytest.raises(ValueError, match=r"recipe 'pvt' does not exist; known recipes: fedst, pvt_fpn, surgfed"):
        read_recipe("pvt")


@pytest.mark.parametrize(("changes", "message"), [
    ({"stages": {"a": {"begins": "b", "options": {}}}}, "stage a begins from 'b'; name a stage above it"),
    ({"candidates": ["fourth"]}, "candidate 'fourth' is no stage; stages: first, second, third"),
    ({"candidates": []}, "candidates or bundles are missing"), ({"bundels": ["one"]}, "unknown key 'bundels'"),
    ({"common": {"sizes": "64x64:2"}}, "has an option that `surgfl pretrain` lacks: --sizes=64x64:2"),
    ({"common": {"frames": "many"}}, "options .* are wrong: .*--frames"), ({"common": {"colour": 7}}, "colour is 7"),
    ({"common": {"looks": "pink-*"}}, "look 'pink-0' is unknown"),
])  # fmt: skip
def test_a_wrong_recipe_is_refused_before_any_training(changes, message, recipe, tmp_path, capsys):
    assert main(["weights", recipe(**changes), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_the_shipped_recipes_have_valid_options_and_lead_back_to_random_weights(name, tmp_path):
    result = read_recipe(name)
    for stage in result.stages:
        args = weights._parsed(pretrain, words_of(result, stage, tmp_path))
        settings = pretrain.settings(argparse.Namespace(**{**vars(args), "start": "random"}))
        assert settings.bundle == result.bundles[0] and settings.steps >= 1000
        assert result.stages[line_of(result, stage)[-1]].begins == "random"
    assert any(look.startswith("surgery-") for look in settings.looks)
