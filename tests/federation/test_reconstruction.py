"""A federation without labels: sites of frames alone learn to restore hidden patches, under FedSAM."""

import json

import cv2
import numpy as np
import pytest
from safetensors.torch import load_file

from shared_components.data.site_file import load_site
from shared_components.networks.checkpoints import load_metadata
from shared_components.tasks.reconstruction import GREY
from tests.federation.conftest import Federation, make_job, render

SITES = ("site-1", "site-2")
LABELS = ("label", "ground_truth", "segmentation", "mask", "depth")


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory):
    """Return the site.yaml files of two sites, in two layouts, that hold nothing but frames."""
    return render(tmp_path_factory.mktemp("unlabelled"), sites=2, tasks=["reconstruction"])


@pytest.fixture(scope="module")
def ended(unlabelled, tmp_path_factory):
    """Return a federation of two rounds that has ended."""
    folder = tmp_path_factory.mktemp("runs")
    return Federation(make_job("fedsam"), folder, unlabelled, SITES).run().finish()


def test_the_sites_have_no_label_file(unlabelled):
    roots = [load_site(path).root for path in unlabelled]
    assert len({root.name for root in roots}) == 2
    for root in roots:
        images = [path for path in root.rglob("*.png")]
        assert len(images) == 3 * 4
        assert not [path for path in root.rglob("*") for word in LABELS if word in path.name.lower()]


@pytest.mark.slow
def test_it_trains_on_hidden_patches_and_the_lowest_error_is_best(ended):
    info = json.loads((ended.server.folder / "run.json").read_text())
    assert {card["kind"] for card in info["cards"].values()} == {"reconstruction"}
    assert [row["name"] for row in info["metrics"]["reconstruction"]] == ["mse", "psnr"]
    for site in SITES:
        records = [r for r in ended.server.records if r["kind"] == "site" and r["site"] == site]
        found = [r["metrics"]["mse"]["mean"] for r in records]
        assert len(found) == 3 and all("reconstruction" in r["loss"] for r in records[:2])
        best = load_metadata(ended.server.folder / site / "best.safetensors")
        assert float(best["validation_mse"]) == min(found) and best["task"] == "reconstruction"
        assert best["outputs"] == "" and "classes" not in best
    assert len(load_file(ended.server.folder / "server" / "model.safetensors")["head_global.bias"]) == 3


def test_its_pictures_are_frame_masked_and_restored(ended):
    for site in SITES:
        pictures = sorted((ended.server.folder / site / "overlays").glob("*.png"))
        assert len(pictures) == 3
        frame, masked, restored = panels(cv2.imread(str(pictures[0])))
        grey = (np.abs(masked.astype(int) - round(255 * GREY)) <= 2).all(axis=2)
        assert 0.65 < grey.mean() < 0.85  # 75 % of the patches are hidden
        seen = ~grey & (np.abs(frame.astype(int) - masked) <= 2).all(axis=2)
        assert seen.mean() > 0.1  # the rest is the frame's own, but for what resizing blurs
        assert (np.abs(restored.astype(int) - frame) <= 2).all(axis=2)[seen].mean() > 0.95
        assert not (np.abs(restored.astype(int) - masked) <= 2).all(axis=2)[grey].all()


def panels(picture):
    """Cut a picture at its white columns into three parts of one width, without the words above them."""
    rows = np.flatnonzero((picture != 255).any(axis=(1, 2)))
    body = picture[rows[-1] - 100 : rows[-1] + 1]  # below the words
    white = (body == 255).all(axis=(0, 2))
    edges = np.flatnonzero(np.diff(np.concatenate([[True], white, [True]]).astype(int)))
    parts = [body[:, a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
    assert len(parts) == 3
    width = min(part.shape[1] for part in parts)
    return [part[:, :width] for part in parts]
