"""A hospital that trains alone with a bundle gets the bits of a federation whose only site it is."""

import pytest
import torch

from shared_components.federation.in_process import run_together
from shared_components.federation.messages import Job
from shared_components.networks.checkpoints import load_weights


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bundle", "method", "changed"),
    [("pfedsis", "pfedsis", {}), ("pvt_fpn", "fedavg", {"colour": 1.0}), ("pfedsis", "pfedsis", {"precision": "bf16"})],
)
def test_a_bundle_trains_to_the_bits_of_a_federation_of_one(run, bundle, method, changed, site_config, small, tmp_path):
    small |= {f"training#{name}": value for name, value in changed.items()}
    training = {name.removeprefix("training#"): value for name, value in small.items()}
    job = Job(name="alone", bundle=bundle, method=method, rounds=training.pop("rounds"), training=training)
    folder = run_together(job, {"only": site_config}, tmp_path / "runs").folder
    run(bundle, "train", site_config=str(site_config), output_dir=str(tmp_path / "out"), **small)

    federated = load_weights(folder / "only" / "model.safetensors")
    alone = load_weights(tmp_path / "out" / "model.safetensors")
    assert federated.keys() == alone.keys()
    assert [name for name in alone if not torch.equal(alone[name], federated[name])] == []
