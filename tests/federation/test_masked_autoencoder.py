"""A masked autoencoder through the house: sites of frames alone train it under adaptive FedSAM, and are scored."""

import math

import pytest
import torch
from safetensors.torch import load_file

from shared_components.core.initial_weights import RANDOM
from shared_components.networks import vit
from shared_components.weights.bundle_files.make import write_bundle
from tests.federation.conftest import SITES, TINY, TOY, Federation, make_job, render

TOYS = "tiny.Tiny\n  out_channels: 4"
MAE = "mae_vit.MaeVit\n  out_channels: 3\n  size: 32"


@pytest.fixture
def ended(toy_bundle, tmp_path, monkeypatch):
    """Return a federation of two sites and rounds that has ended."""
    monkeypatch.setitem(vit.ARCHITECTURES, "tiny", vit.Architecture(32, 8, 24, 2, 2, 12, 1, 2))
    tasks = "  reconstruction: {patch: 8, pixels: normalised}\n"
    text = TOY.replace(TOYS, MAE).replace("  segmentation: {}\n  depth: {}\n  reconstruction: {patch: 8}\n", tasks)
    assert MAE in text and tasks in text
    (toy_bundle / "toy.yaml").write_text(text)
    write_bundle("toy", toy_bundle)
    sites = render(tmp_path / "sites", sites=2, tasks=["reconstruction"])
    job = make_job("fedsam", bundle="toy", training={**TINY, "start": RANDOM}, arguments={"adaptive": True, "rho": 0.7})
    return Federation(job, tmp_path / "runs", sites, SITES[:2]).run().finish()


def test_it_trains_is_scored_by_patches_and_its_positions_stay_and_never_travel(ended):
    for site in SITES[:2]:
        records = [r for r in ended.server.records if r["kind"] == "site" and r["site"] == site]
        assert len(records) == 3 and all(math.isfinite(r["loss"]["reconstruction"]) for r in records[:2])
        assert all(0 <= r["metrics"]["below_300"]["mean"] <= 1 for r in records)
        model = load_file(ended.server.folder / site / "model.safetensors")
        assert torch.equal(model["pos_embed"], vit.sine_positions(24, 4, 4))
    learnt = set(ended.server.state.models.of(SITES[0]))
    assert learnt == set(model) - {"pos_embed", "decoder_pos_embed"}
