"""Own classes in a federation: among equals by any method, beside others by a method of several tasks."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

from shared_components.core.card import Card
from shared_components.federation.messages import FederationError
from tests.data.volumes import write_labels
from tests.federation.conftest import SITES, Federation, make_job

CLASSES = ("background", "bulldog clamp", "irrigator")


def own_site(folder: Path, ids: dict[int, str], *, kind: str = "frames") -> Path:
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


def run(job, sites, tmp_path) -> Federation:
    names = SITES[: len(sites)]
    return Federation(job, tmp_path / "runs", sites, names).run().finish()


def heads(federation: Federation, name: str) -> set[int]:
    """Return how many classes a site's last layers have."""
    weights = load_file(federation.server.folder / name / "best.safetensors")
    return {len(value) for key, value in weights.items() if key.startswith("head") and key.endswith("bias")}


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto"])
def test_sites_of_the_same_own_classes_train_together(method, hospitals, toy_bundle, tmp_path):
    federation = run(make_job(method, bundle="toy"), hospitals[:2], tmp_path)

    for name in federation.server.state.sites:
        assert federation.server.state.profiles[name].card == Card("segmentation", CLASSES)
        assert heads(federation, name) == {3}


def test_a_volume_beside_folders_of_images_trains_too(hospitals, toy_bundle, tmp_path):
    federation = run(make_job("fedavg", bundle="toy"), [hospitals[0], hospitals[2]], tmp_path)
    assert {profile.card.outputs for profile in federation.server.state.profiles.values()} == {CLASSES}


@pytest.mark.parametrize("method", ["mat_fl", "fedhca2"])
def test_a_method_of_several_tasks_takes_own_classes_beside_others(method, hospitals, scenes, toy_bundle, tmp_path):
    federation = run(make_job(method, bundle="toy"), [hospitals[0], *scenes[:2]], tmp_path)

    outputs = [federation.server.state.profiles[name].card.outputs for name in SITES]
    assert outputs[0] == CLASSES and outputs[1] == ("background", "shaft", "wrist", "clasper")
    assert [heads(federation, name) for name in SITES[:2]] == [{3}, {4}]


def test_own_classes_beside_others_are_refused_by_name_where_a_method_shares_the_head(
    hospitals, scenes, toy_bundle, tmp_path
):
    with pytest.raises(FederationError, match=r"bulldog clamp, irrigator.*task and classes in site\.yaml"):
        run(make_job("fedavg", bundle="toy"), [hospitals[0], scenes[0]], tmp_path)


def test_own_values_under_public_names_join_a_federation_of_public_data(scenes, toy_bundle, tmp_path):
    site = own_site(tmp_path / "d", {40: "clasper", 50: "shaft"})
    site.write_text(site.read_text() + "classes: parts\n")

    federation = run(make_job("fedavg", bundle="toy"), [site, scenes[0]], tmp_path)
    assert len({profile.card for profile in federation.server.state.profiles.values()}) == 1
