"""FL-EndoViT's job in one process: nine unequal sites pre-train one masked autoencoder by its own file."""

import json

import pytest
import torch
from safetensors.torch import load_file

from shared_components.networks.mae_vit import MaeVit
from shared_components.scenes.site_sets import site_set
from tests.flare.conftest import run_here
from tests.flare.simulator import SERVER, edit, tiny_job

pytestmark = pytest.mark.slow

SITES = tuple(f"site-{number}" for number in range(1, 10))


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fl_endovit")
    job = tiny_job(folder, "fl_endovit", swa={"start": 1})

    def shrink(config):
        args = config["workflows"][0]["args"]
        args["synthetic"]["frames_per_video"] = 1
        args["training"]["epochs"] = 0

    edit(job / SERVER, shrink)
    return run_here(job, folder / "ws", sites=SITES)


def records(ended, kind):
    lines = map(json.loads, (ended.run / "server" / "rounds.jsonl").read_text().splitlines())
    return [record for record in lines if record["kind"] == kind]


def test_nine_sites_as_unequal_as_the_papers_train_one_model(ended):
    assert ended.panics == [] and ended.last_line.startswith("surgfl: fl_endovit finished 2 rounds; models ")
    described = json.loads((ended.run / "run.json").read_text())
    samples = [site.frames_per_video * site.videos["train"] for site in site_set("endo700k", frames=1)]
    assert max(samples) / min(samples) > 400 and len(described["cards"]) == 9
    assert not any(record["rejected"] for record in records(ended, "aggregation"))
    models = [load_file(ended.run / site / "model.safetensors") for site in SITES]
    assert all(torch.equal(value, model[name]) for model in models for name, value in models[0].items())


def test_all_weights_travel_but_the_positions_which_are_constants(ended):
    with torch.device("meta"):
        network = MaeVit()
    trained = sum(value.numel() for value in network.parameters() if value.requires_grad)
    sent = {sum(record["bytes"]["up"].values()) for record in records(ended, "site") if record["round"] == 0}
    assert sent == {4 * trained} and trained == 2_967_936
    first = MaeVit().state_dict()
    model = load_file(ended.run / SITES[0] / "model.safetensors")
    assert set(model) == set(first)
    moved = {name for name, value in first.items() if not torch.equal(value, model[name])}
    assert set(first) - moved >= {"pos_embed", "decoder_pos_embed"} and "decoder_pred.weight" in moved


def test_a_site_scores_the_patches_that_it_restores(ended):
    for record in records(ended, "site"):
        assert {"mse", "psnr", "below_300", "below_010"} <= set(record["metrics"])
