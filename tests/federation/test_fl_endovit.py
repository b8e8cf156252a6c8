"""FL-EndoViT in one process: sites train its masked autoencoder, or fine-tune one encoder; a start that saw a test is
refused."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from shared_components.core.initial_weights import RANDOM
from shared_components.data.site_file import load_site
from shared_components.data.splits import seen_videos_entry
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import Job
from shared_components.federation.setup.site_setup import set_up_site
from shared_components.flare.deployment.job_files import described_jobs
from shared_components.flare.deployment.job_folder import jobs_folder
from shared_components.networks import vit
from shared_components.networks.checkpoints import load_weights, save_weights
from shared_components.networks.mae_vit import MaeVit
from shared_components.weights.bundle_files.make import write_bundle
from tests.federation.conftest import SITES, TINY, TOY, Federation, make_job, render

FIRST = {
    "fl_endovit_phases": "f1",
    "fl_endovit_segmentation": "image_iou",
    "fl_endovit_triplets": "map",
    "fedsurg": "macro_f1",
}
ONE = {"batch_size": 2, "epochs": 0, "iterations": 1, "warmup_rounds": 0.0, "start": "file"}


def job(name):
    """Return a job of the folder with one short round, and the layout and task of its rendered sites."""
    row = described_jobs(jobs_folder())[name]
    sites = row["synthetic"]
    made = {**row, "rounds": 1, "training": {**row["training"], **ONE}}
    if "set" in sites:
        return Job.from_json(made), "appendix300", ["classification"]
    return Job.from_json(made), sites.get("layouts", ["endovis2017"])[0], sites.get("tasks", ["segmentation"])


def pretrained(folder, **notes):
    torch.manual_seed(3)
    path = folder / "mae.safetensors"
    save_weights(path, MaeVit().state_dict(), {"bundle": "fl_endovit", **notes})
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST)
def test_sites_fine_tune_one_encoder_from_pre_trained_weights(tmp_path, name):
    made, layout, tasks = job(name)
    files = render(tmp_path / "sites", sites=2, layout=layout, tasks=tasks, height=64, width=64, frames_per_video=8)
    start = pretrained(tmp_path)
    ended = run_together(made, dict(zip("ab", files, strict=True)), tmp_path / "runs", start_weights=start)
    one, other = (load_weights(ended.folder / site / "model.safetensors") for site in "ab")
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    before = load_weights(start)
    assert torch.equal(one["pos_embed"], before["pos_embed"])
    assert not torch.equal(one["blocks.0.attn.qkv.weight"], before["blocks.0.attn.qkv.weight"])
    for site in "ab":
        final = json.loads((ended.folder / site / "final.json").read_text())
        assert 0 <= final[FIRST[name]]["mean"] <= 1


def test_a_site_whose_test_the_start_has_seen_takes_no_part(tmp_path):
    made, layout, tasks = job("fl_endovit_phases")
    (file,) = render(tmp_path / "sites", sites=1, layout=layout, tasks=tasks, height=64, width=64, frames_per_video=1)
    (file.parent / "render.json").unlink()  # as of a public data set
    site, start = load_site(file), pretrained(tmp_path, **seen_videos_entry({"cholec80": ["video02", "video03"]}))
    (test,) = site.split["test"]
    with pytest.raises(ValueError, match=rf"mae\.safetensors has seen 1 of the test's videos of cholect45 \({test}\)"):
        set_up_site(made, site, start_weights=start)


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
