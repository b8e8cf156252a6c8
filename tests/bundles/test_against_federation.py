"""A hospital that trains alone with a bundle gets the bits of a federation whose only site it is."""

import pytest
import torch

from shared_components.checkpoints import load_weights
from shared_components.data.sites import load_site
from shared_components.federation.messages import Job
from shared_components.federation.server import ServerRunner, open_run
from shared_components.federation.site import SiteRunner


def federate_one_site(job, site_config, folder):
    """Carry the messages of a whole run by hand and return the run's folder."""
    site = SiteRunner("only", folder=folder, find_site=lambda job, index: load_site(site_config, name="only"))
    run = open_run(job, folder, resume=False)
    server = ServerRunner(job, ["only"], run)
    server.enrolled({"only": site.answer("enrol", server.enrol_messages()["only"])})
    for _ in range(job.rounds):
        server.finish_round({"only": site.answer("round", server.round_messages()["only"])}, {})
    server.finished({"only": site.answer("finish", server.round_messages()["only"])})
    return run


@pytest.mark.parametrize(
    ("bundle", "method", "precision"),
    [("pfedsis", "pfedsis", "float32"), ("pvt_fpn", "fedavg", "float32"), ("pfedsis", "pfedsis", "bf16")],
)
def test_a_bundle_trains_to_the_bits_of_a_federation_of_one(
    run, bundle, method, precision, site_config, small, tmp_path
):
    small["training#precision"] = precision
    training = {name.removeprefix("training#"): value for name, value in small.items()}
    job = Job(name="alone", bundle=bundle, method=method, rounds=training.pop("rounds"), training=training)
    folder = federate_one_site(job, site_config, tmp_path / "runs")
    run(bundle, "train", site_config=str(site_config), output_dir=str(tmp_path / "out"), **small)

    federated = load_weights(folder / "only" / "model.safetensors")
    alone = load_weights(tmp_path / "out" / "model.safetensors")
    assert federated.keys() == alone.keys()
    assert [name for name in alone if not torch.equal(alone[name], federated[name])] == []
