"""A model from a few frames: its files, its scores, and the state after an error."""

import json

import cv2
import numpy as np
import pytest
import torch

from shared_components.common.progress import listening
from shared_components.core.trained_model import load_trained
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.networks import bundle_config
from shared_components.networks.checkpoints import load_metadata, load_weights
from shared_components.weights.fine_tuning import train
from shared_components.weights.fine_tuning.plan import Settings
from shared_components.weights.fine_tuning.train import fine_tune

pytestmark = pytest.mark.slow

STEPS = 120


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def dice(mask, truth, number):
    """Return a class's Dice by counting pixels; NaN where neither has it."""
    a, b = mask == number, truth == number
    return 2 * (a & b).sum() / (a.sum() + b.sum()) if a.any() or b.any() else np.nan


def dice_of(model, site):
    """Score a checkpoint on the test split: means over frames by class, then over classes."""
    trained = load_trained(model, bundle="toy")
    rows = []
    for sample in samples(site, "test"):
        item = read_sample(sample)
        with torch.no_grad():
            logits = trained.network.eval()(train.evaluation.network_input(item.images, 32, 32))
        mask = logits[0].argmax(0).to(torch.uint8).numpy()
        truth = item.targets["label"]
        large = cv2.resize(mask, truth.shape[::-1], interpolation=cv2.INTER_NEAREST_EXACT)
        rows.append([dice(large, truth, number) for number in (1, 2)])
    return np.nanmean(rows, axis=0).mean()


def test_a_model_comes_with_its_own_scores_a_picture_and_a_record(tune):
    lines, seen = [], []
    with listening(seen.append):
        outcome = tune(steps=STEPS, say=lines.append)
    assert names(outcome.folder) == ["before-after.png", "model.safetensors", "training.json"]
    assert outcome.chosen and 0 < outcome.steps <= STEPS
    site = load_site(json.loads((outcome.folder / "training.json").read_text())["site_yaml"])
    before, after = outcome.before["dice"]["mean"], outcome.after["dice"]["mean"]
    assert after > before + 0.1
    assert after == pytest.approx(dice_of(outcome.model, site))
    notes = load_metadata(outcome.model)
    assert (notes["bundle"], notes["site"], notes["height"]) == ("toy", "hospital-x", "32")
    assert notes["classes"] == "background,bulldog clamp,irrigator"
    picture = cv2.imread(str(outcome.picture))
    assert picture.shape[1] == 4 * 400 + 3 * 6 and picture.std() > 10
    assert lines[0].startswith("hospital-x: 4 frames to train on, 4 to validate, 4 to test; bulldog clamp, irrigator")
    assert lines[1].startswith(f"from random, at 32x32, in batches of 2, at most {STEPS} steps: about ")
    one, few = lines[2:]
    assert [one, few] == list(outcome.remarks) and few.startswith("4 frames will score the model")
    assert one == "all test frames are from one video (c): other videos may give other scores"
    training = [step for step in seen if step.what == "training"]
    assert {step.total for step in training} == {STEPS} and max(step.done for step in training) == outcome.steps
    assert all(step.note.endswith(" left") for step in training)


def test_equal_steps_and_seeds_give_equal_bits_and_the_record_has_all_settings(tune):
    one, two, outcome = tune("one"), tune("two"), tune("other", seed=7)
    first, second, third = (load_weights(result.model) for result in (one, two, outcome))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], third[name]) for name in first)
    record = json.loads((outcome.folder / "training.json").read_text())
    wanted = {"bundle": "toy", "seed": 7, "height": 32, "width": 32, "batch_size": 2, "planned": 3, "steps": 3}
    assert {key: record[key] for key in wanted} == wanted
    assert record["frames"] == {"train": 4, "validation": 4, "test": 4} and record["start"]["start"] == "random"
    assert record["after"]["dice"] == outcome.after["dice"]
    assert record["files"] == ["before-after.png", "model.safetensors"]


def test_weights_that_no_step_makes_better_are_those_it_began_from(tune, monkeypatch):
    monkeypatch.setattr(train.LocalRound, "validate", lambda self, network: 0.5)
    outcome = tune(steps=60)
    assert not outcome.chosen and outcome.steps == 6 * 5 - 5, "five validations without a better score, of 5 steps each"
    assert outcome.after["dice"] == outcome.before["dice"]


def test_a_new_result_replaces_an_earlier_one_and_nothing_else(tune, tmp_path):
    outcome = tune()
    old = outcome.model.read_bytes()
    assert tune(seed=9).model.read_bytes() != old
    (outcome.folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"contains 'notes\.txt', which is not part of an earlier result"):
        tune()
    assert (outcome.folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("end", [RuntimeError("the power fails"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["_train", "before_and_after"])
def test_what_ends_it_half_way_leaves_the_earlier_result_whole(tune, monkeypatch, end, place):
    outcome = tune()
    before = {name: (outcome.folder / name).read_bytes() for name in names(outcome.folder)}

    def fails(*args, **options):
        raise end

    with monkeypatch.context() as patched:
        patched.setattr(train, place, fails)
        with pytest.raises(type(end)):
            tune(seed=3)
        with pytest.raises(type(end)):
            tune("new")
    assert {name: (outcome.folder / name).read_bytes() for name in names(outcome.folder)} == before
    assert not outcome.folder.with_name(outcome.folder.name.replace("-model", "-new")).exists()


def test_an_overtaken_clock_ends_the_training(tune, monkeypatch):
    """If the machine is slower than measured, training stops at the time limit with the best checkpoint."""
    clock = iter(range(0, 10**9, 100))
    monkeypatch.setattr(train.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(train, "_measure", lambda *args: train.Speed(0.01, 0.0, 0.0))
    outcome = tune(steps=None, minutes=1.0)
    record = json.loads((outcome.folder / "training.json").read_text())
    assert outcome.steps < record["planned"]


def test_a_folder_inside_of_the_data_is_refused(toy_bundle, own_site):
    site = load_site(own_site())
    with pytest.raises(ValueError, match=r"is inside the data of site hospital-x; choose an --out outside of"):
        fine_tune(site, site.root / "model")
    assert not (site.root / "model").exists()


def test_other_tasks_and_sizes_that_the_network_does_not_take_are_refused(tune, own_site, monkeypatch):
    with pytest.raises(ValueError, match="task is reconstruction, and `surgfl train` trains segmentation and depth"):
        tune(site=load_site(own_site(task="reconstruction")))
    stride = property(lambda self: 32)
    monkeypatch.setattr("shared_components.networks.tiny.Tiny.stride", stride, raising=False)
    with pytest.raises(ValueError, match=r"the size is 33x32, .* use 32x32"):
        tune(size=(33, 32))


def test_coarser_classes_are_compared_with_the_shipped_weights_classes_merged(own_site, tmp_path):
    """The model before is what `surgfl segment` and the evaluation use there: probabilities that add."""
    site = load_site(own_site(root=str(tmp_path), ids={40: "instrument", 200: "instrument"}))
    out = tmp_path.parent / f"{tmp_path.name}-out"
    outcome = fine_tune(site, out, Settings(steps=1, size=(32, 32), batch_size=1))
    trained = load_trained(bundle_config.bundles_folder() / "pvt_fpn/models/model.safetensors", bundle="pvt_fpn")
    scores = []
    for sample in samples(site, "test"):
        item = read_sample(sample)
        with torch.no_grad():
            image = train.evaluation.network_input(item.images, 32, 32)
            shares = trained.network.eval()(image).softmax(1)[0]
        seen = (shares[1:].sum(0) > shares[0]).to(torch.uint8).numpy()
        large = cv2.resize(seen, (32, 24), interpolation=cv2.INTER_NEAREST_EXACT)
        scores.append(dice(large, item.targets["label"], 1))
    assert outcome.before["dice"]["instrument"] == pytest.approx(np.nanmean(scores))
