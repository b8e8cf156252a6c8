"""Training data of sites: classes of their own, another site's frames besides their own, or frames without labels."""

import json
import shutil

import cv2
import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

from shared_components.core.card import Card
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.federation.messages import FederationError
from shared_components.federation.messages.parse import parse_request
from shared_components.federation.setup.site_setup import set_up_site
from shared_components.networks.checkpoints import load_metadata
from shared_components.tasks.reconstruction import GREY
from tests.data.volumes import write_labels
from tests.federation.conftest import SITES, Federation, make_job, render

CLASSES = ("background", "bulldog clamp", "irrigator")
LABELS = ("label", "ground_truth", "segmentation", "mask", "depth")


def own_site(folder, ids, *, kind="frames"):
    """Write a site of three videos whose masks hold the given values, one rectangle each, and unlabelled rims."""
    for video in ("east", "north", "west"):
        masks = []
        for index in range(3):
            mask = np.zeros((40, 56), np.uint8)
            for place, value in enumerate(ids):
                mask[8 + index : 24, 6 + 20 * place : 18 + 20 * place] = value
            masks.append(mask)
            picture = cv2.merge([np.full_like(mask, 70), mask, 255 - mask])
            for name, array in (("images", picture), ("masks", mask)):
                path = folder / name / video / f"{index:02d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                cv2.imwrite(str(path), array)
        write_labels(folder / f"masks/{video}.nii.gz", masks)
    split = {"train": ["east"], "validation": ["north"], "test": ["west"]}
    (folder / "site.yaml").write_text(yaml.safe_dump({"dataset": kind, "root": ".", "ids": ids, "split": split}))
    return folder / "site.yaml"


@pytest.fixture
def hospitals(tmp_path):
    """Return three sites of the same classes: other values, another order of the table, another form."""
    return [
        own_site(tmp_path / "a", {3: "irrigator", 9: "bulldog clamp"}),
        own_site(tmp_path / "b", {90: "bulldog clamp", 30: "irrigator", 7: "ignore"}),
        own_site(tmp_path / "c", {1: "irrigator", 2: "bulldog clamp"}, kind="nifti"),
    ]


def run(job, sites, tmp_path):
    return Federation(job, tmp_path / "runs", sites, SITES[: len(sites)]).run().finish()


def heads(federation, name):
    """Return how many classes a site's last layers have."""
    weights = load_file(federation.server.folder / name / "best.safetensors")
    return {len(value) for key, value in weights.items() if key.startswith("head") and key.endswith("bias")}


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto"])
def test_sites_of_the_same_own_classes_train_together(method, hospitals, toy_bundle, tmp_path):
    federation = run(make_job(method, bundle="toy"), hospitals[:2], tmp_path)
    for name in federation.server.state.sites:
        assert federation.server.state.profiles[name].card == Card("segmentation", CLASSES)
        assert heads(federation, name) == {3}


def test_own_classes_are_compared_by_name_with_those_of_other_sites(hospitals, toy_bundle, tmp_path, scenes):
    federation = run(make_job("fedavg", bundle="toy"), [hospitals[0], hospitals[2]], tmp_path)
    assert {profile.card.outputs for profile in federation.server.state.profiles.values()} == {CLASSES}
    site = own_site(tmp_path / "d", {40: "clasper", 50: "shaft"})
    site.write_text(site.read_text() + "classes: parts\n")
    federation = run(make_job("fedavg", bundle="toy"), [site, scenes[0]], tmp_path)
    assert len({profile.card for profile in federation.server.state.profiles.values()}) == 1
    with pytest.raises(FederationError, match=r"bulldog clamp, irrigator.*task and classes in site\.yaml"):
        run(make_job("fedavg", bundle="toy"), [hospitals[0], scenes[0]], tmp_path)


@pytest.mark.parametrize("method", ["mat_fl", "fedhca2"])
def test_a_method_of_several_tasks_takes_own_classes_beside_others(method, hospitals, scenes, toy_bundle, tmp_path):
    federation = run(make_job(method, bundle="toy"), [hospitals[0], *scenes[:2]], tmp_path)
    outputs = [federation.server.state.profiles[name].card.outputs for name in SITES]
    assert outputs[0] == CLASSES and outputs[1] == ("background", "shaft", "wrist", "clasper")
    assert [heads(federation, name) for name in SITES[:2]] == [{3}, {4}]


@pytest.fixture
def adding(scenes, toy_bundle, tmp_path):
    """Two sites that add the same frames, whose videos and numbers are called as the first one's own."""
    added = shutil.copytree(scenes[0].parent, tmp_path / "added") / "site.yaml"
    files = []
    for number, path in enumerate(scenes[:2]):
        files.append(shutil.copytree(path.parent, tmp_path / f"site-{number}") / "site.yaml")
        config = yaml.safe_load(path.read_text()) | {"also_trains_on": str(added), "quarantine": 0.2}
        files[-1].write_text(yaml.safe_dump(config))
    return files


def federation_of(files, folder, method="fedavg"):
    return Federation(make_job(method), folder, files, ["a", "b"]).enrol()


def test_added_frames_count_as_samples_but_in_no_score_and_are_pooled_once(adding, scenes, tmp_path):
    plain = federation_of(scenes, tmp_path / "plain")
    federation = federation_of(adding, tmp_path / "adding")
    assert [plain.server.state.profiles[name].samples for name in "ab"] == [4, 4]
    assert [federation.server.state.profiles[name].samples for name in "ab"] == [8, 8]
    before, after = (f.replies()["a"].header for f in (plain, federation))
    assert (before["samples"], after["samples"]) == (4, 8)
    assert before["metrics"] == after["metrics"]  # of the model that both have received
    federation = federation_of(adding, tmp_path / "pooled", "centralised")
    runner, request = federation.sites["a"], parse_request(federation.asked.task, federation.asked.messages["a"])
    pool = runner._training_samples(set_up_site(request.job, load_site(adding[0])), request).samples
    assert [sample.added for sample in pool] == [False] * 8 + [True] * 4


@pytest.mark.parametrize("which", [0, 4])
def test_a_frame_that_is_set_aside_takes_no_other_of_its_name_with_it(adding, tmp_path, which):
    broken = samples(load_site(adding[0]), "train")[which]
    broken.images[0].write_bytes(b"")
    federation = federation_of(adding, tmp_path)
    runner, request = federation.sites["a"], parse_request(federation.asked.task, federation.asked.messages["a"])
    left = runner._samples(set_up_site(request.job, load_site(adding[0])), request, "train")
    assert len(left) == 7 and broken not in left
    assert [sample.added for sample in left].count(True) == (4 if which == 0 else 3)


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory):
    """Return the site.yaml files of two sites, in two layouts, that hold nothing but frames."""
    return render(tmp_path_factory.mktemp("unlabelled"), sites=2, tasks=["reconstruction"])


@pytest.fixture(scope="module")
def ended(unlabelled, tmp_path_factory):
    """Return a federation of two rounds that has ended."""
    folder = tmp_path_factory.mktemp("runs")
    return Federation(make_job("fedsam"), folder, unlabelled, SITES[:2]).run().finish()


def test_the_sites_have_no_label_file(unlabelled):
    roots = [load_site(path).root for path in unlabelled]
    assert len({root.name for root in roots}) == 2
    for root in roots:
        images = [path for path in root.rglob("*.png")]
        assert len(images) == 3 * 4
        assert not [path for path in root.rglob("*") for word in LABELS if word in path.name.lower()]


@pytest.mark.slow
@pytest.mark.pictures
def test_it_trains_on_hidden_patches_and_the_lowest_error_is_best(ended):
    info = json.loads((ended.server.folder / "run.json").read_text())
    assert {card["kind"] for card in info["cards"].values()} == {"reconstruction"}
    mse, psnr, *patches, loss = (row["name"] for row in info["metrics"]["reconstruction"])
    assert (mse, psnr, loss) == ("mse", "psnr", "normalised_mse")
    assert patches == ["below_300", "below_100", "below_050", "below_010"]
    for site in SITES[:2]:
        records = [r for r in ended.server.records if r["kind"] == "site" and r["site"] == site]
        errors = [r["metrics"]["mse"]["mean"] for r in records]
        assert len(errors) == 3 and all("reconstruction" in r["loss"] for r in records[:2])
        best = load_metadata(ended.server.folder / site / "best.safetensors")
        assert float(best["validation_mse"]) == min(errors) and best["task"] == "reconstruction"
        assert best["outputs"] == "" and "classes" not in best
    assert len(load_file(ended.server.folder / "server" / "model.safetensors")["head_global.bias"]) == 3


@pytest.mark.slow
@pytest.mark.pictures
def test_its_pictures_are_frame_masked_and_restored(ended):
    for site in SITES[:2]:
        pictures = sorted((ended.server.folder / site / "overlays").glob("*.png"))
        assert len(pictures) == 3
        frame, masked, restored = panels(cv2.imread(str(pictures[0])))
        grey = (np.abs(masked.astype(int) - round(255 * GREY)) <= 2).all(axis=2)
        assert 0.65 < grey.mean() < 0.85  # 75 % of the patches are hidden
        seen = ~grey & (np.abs(frame.astype(int) - masked) <= 2).all(axis=2)
        assert seen.mean() > 0.1  # the rest equals the frame, except where resizing blurs it
        assert (np.abs(restored.astype(int) - frame) <= 2).all(axis=2)[seen].mean() > 0.95
        assert not (np.abs(restored.astype(int) - masked) <= 2).all(axis=2)[grey].all()


def panels(picture):
    """Cut a picture at its white columns into three parts of equal width, without the words above them."""
    rows = np.flatnonzero((picture != 255).any(axis=(1, 2)))
    body = picture[rows[-1] - 100 : rows[-1] + 1]  # below the words
    white = (body == 255).all(axis=(0, 2))
    edges = np.flatnonzero(np.diff(np.concatenate([[True], white, [True]]).astype(int)))
    parts = [body[:, a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
    assert len(parts) == 3
    width = min(part.shape[1] for part in parts)
    return [part[:, :width] for part in parts]
