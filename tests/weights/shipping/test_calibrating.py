"""`surgfl calibrate` calibrates weights on rendered scenes; other weights need a new calibration."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from shared_components.cli import main
from shared_components.core.calibration import FILE, encoder_features, read_calibration, resized_frame
from shared_components.core.shipped_weights import MODEL, sha256_of
from shared_components.core.trained_model import load_trained
from shared_components.data.site_file import load_site
from shared_components.networks.checkpoints import save_weights
from shared_components.scenes.site import write_site
from shared_components.weights.shipping import calibrating
from shared_components.weights.shipping.calibrating import Plan, _real_videos, calibrate
from shared_components.weights.shipping.recipe import CHOOSING
from shared_components.weights.shipping.weights import UNSEEN
from shared_components.weights.shipping.weights import Tested as Scored
from tests.weights.shipping.conftest import NOTES
from tests.weights.shipping.test_ship import shipped

pytestmark = pytest.mark.slow

NONE_SCORED = ["--looks", "", "--unseen", "1", "--families", "random"]


@pytest.fixture
def real(tmp_path):
    """Return the site.yaml of a site that stands for a real one, with two videos."""
    return write_site(tmp_path / "a", look="ivory", seed=3, videos={"test": 2}, frames_per_video=6, height=64, width=96)


def test_weights_are_calibrated_and_others_anew(toy_bundles, pretrained, weights, real, monkeypatch, capsys):
    monkeypatch.setattr(
        "shared_components.weights.shipping.calibrating.calibrate", partial(calibrate, plan=Plan(3, 3, 2, 1))
    )
    assert shipped(pretrained, *NONE_SCORED) == 0
    assert "next: surgfl calibrate one" in capsys.readouterr().out
    assert main(["calibrate", "one", "--real", f"limit={real}"]) == 2
    assert "site 'limit' has the name of a group of rendered videos" in capsys.readouterr().err
    assert main(["calibrate", "one", "--real", f"Hospital A={real}"]) == 0
    path = toy_bundles / "one" / MODEL
    made = read_calibration(path.with_name(FILE))
    card = made.facts.card
    assert made.facts.weights == sha256_of(path)
    assert card["command"] == "surgfl calibrate one '--real=Hospital A=site.yaml'"
    known = {"unseen": 4, "unseen microscope": 2, "unseen flexible": 2, "a grey frame": 1, "noise": 1}
    counts = known | {"a drawing of a house": 1, "Hospital A": 2}
    for groups in card["rates"].values():
        assert {name: record["videos"] for name, record in groups.items()} == counts
    trained = load_trained(path, bundle="one")
    grey = encoder_features(trained.network.eval(), resized_frame(np.full((9, 9, 3), 128, np.uint8)))
    score = trained.calibration.score(grey)
    assert card["rates"]["encoder"]["a grey frame"]["median"] == pytest.approx(score, abs=0.01)
    assert {name: record["frames"] for name, record in card["errors"].items()} == {"unseen": 4, "Hospital A": 12}

    document = (toy_bundles / "one" / "docs" / "README.md").read_text()
    assert "**Warning for unknown scenes**" in document and "| Hospital A | 2 |" in document
    message = capsys.readouterr().out
    assert "Hospital A" in message and str(path.with_name(FILE)) in message
    assert main(["bundles", "--check"]) == 0

    facts = json.loads((pretrained / "pretraining.json").read_text())
    save_weights(pretrained / "model.safetensors", {name: value / 2 for name, value in weights.items()}, NOTES)
    (pretrained / "pretraining.json").write_text(json.dumps(facts))
    assert shipped(pretrained, *NONE_SCORED) == 0
    assert "**Warning for unknown scenes**" not in (toy_bundles / "one" / "docs" / "README.md").read_text()
    capsys.readouterr()
    assert main(["bundles", "--check"]) == 2
    assert "belongs to other weights; run `surgfl calibrate one`" in capsys.readouterr().err
    assert load_trained(path, bundle="one").calibration is None


def test_frames_of_a_real_video_are_spread_and_too_few_are_repeated(real, monkeypatch):
    monkeypatch.setattr(calibrating, "FRAMES", 2)
    record = list(_real_videos(Scored("A", "real", load_site(real))))
    assert [video.shape for video in record] == [(2, 64, 96, 3)] * 6  # 0 and 3, 1 and 4, 2 and 5 of either
    monkeypatch.setattr(calibrating, "FRAMES", 8)
    first, _ = _real_videos(Scored("A", "real", load_site(real)))
    assert first.shape[0] == 8 and (first[6:] == first[:2]).all() and (first[0] != first[1]).any()


def test_the_limit_is_passed_by_no_more_than_was_allowed_of_the_videos_that_set_it():
    videos = torch.randn(300, 4, 2, 6, generator=torch.Generator().manual_seed(0))
    far, along = videos[:50].clone(), videos[50:100].clone()
    far[:, :, 0] += 9
    along[:, :, 1, 2] += 9
    groups = {"known videos": videos[:100], "limit": videos[100:], "eyes and hollow organs": along[:20]}
    made = calibrating._fitted(groups, {"weights": "", "temperature": 1.0})
    rates = calibrating._rates(made, groups | {"same": videos[100:], "far": far, "along": along[20:]})
    assert {name: record["warned"] for name, record in rates.items() if name != "same"} == {"far": 50, "along": 30}
    assert 0 < rates["same"]["warned"] <= 2 and made.facts.limit_of_few > made.facts.limit >= 1
    assert rates["same"]["frames"] == 800


def test_its_looks_are_those_of_no_training_choice_or_card():
    last = calibrating.FIRST + 2 * (Plan().reference + Plan().tested) + Plan().limit
    assert CHOOSING < UNSEEN < UNSEEN + 1000 < calibrating.FIRST < last
    names = calibrating.not_surgery()
    assert len(names) == 3 and all(frame.dtype == np.uint8 and frame.shape[2] == 3 for frame in names.values())


@pytest.mark.usefixtures("toy_bundles")
def test_a_model_of_depth_and_a_bundle_without_weights_are_refused(tmp_path, weights, capsys):
    path = tmp_path / "model.safetensors"
    numbers = {"task": "depth", "outputs": "", "numbers": "{}"}
    save_weights(path, weights, NOTES | numbers)
    with pytest.raises(ValueError, match="only segmentation models without box prompts can be calibrated"):
        calibrate(path, bundle="one")
    assert main(["calibrate", "two"]) == 2 and "bundle 'two' ships no weights" in capsys.readouterr().err


@pytest.mark.usefixtures("toy_bundles")
def test_an_unreadable_site_is_refused_before_anything_is_measured(tmp_path, weights, real, monkeypatch):
    path = tmp_path / "model.safetensors"
    save_weights(path, weights, NOTES)
    for mask in (tmp_path / "a").rglob("*.png"):
        mask.unlink()
    monkeypatch.setattr(calibrating, "_groups", lambda *_: pytest.fail("was measured before"))
    with pytest.raises(ValueError, match="split 'test' has no frames"):
        calibrate(path, bundle="one", real=[Scored("Hospital A", "real", load_site(real))])
