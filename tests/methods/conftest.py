"""Fixtures of the methods' tests: federations of tiny synthetic sites, sites with other class maps, a network."""

import pytest
import torch
import yaml

from shared_components.core.bundle import load_bundle
from shared_components.networks.bundle_config import build_network
from tests.federation.conftest import federate, job_on_toy, scenes, toy_bundle  # noqa: F401


@pytest.fixture(scope="module")
def network():
    """The network of the baselines, in evaluation; a test that changes it takes a copy."""
    torch.manual_seed(0)
    return build_network(load_bundle("pvt_fpn").network).eval()


@pytest.fixture
def sites_with(scenes, tmp_path):  # noqa: F811
    """Return a function that writes a site.yaml for each class map, over the frames of the scenes."""

    def write(*class_maps):
        files = []
        for scene, classes in zip(scenes, class_maps, strict=False):
            config = yaml.safe_load(scene.read_text())
            config |= {"root": str(scene.parent / config["root"]), "classes": classes}
            files.append(tmp_path / f"task-{len(files)}" / "site.yaml")
            files[-1].parent.mkdir()
            files[-1].write_text(yaml.safe_dump(config))
        return files

    return write
