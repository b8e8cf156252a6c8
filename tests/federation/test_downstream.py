"""The jobs of FL-EndoViT's uses, in one process: sites fine-tune one encoder; a start that saw a test is refused."""

import json

import pytest
import torch

from shared_components.data.site_file import load_site
from shared_components.data.splits import seen_note
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import Job
from shared_components.federation.setup.site_setup import set_up_site
from shared_components.flare.deployment.job_files import described_jobs
from shared_components.flare.deployment.job_folder import jobs_folder
from shared_components.networks.checkpoints import load_weights, save_weights
from shared_components.networks.mae_vit import MaeVit
from tests.federation.conftest import render

FIRST = {
    "fl_endovit_phases": "f1",
    "fl_endovit_segmentation": "image_iou",
    "fl_endovit_triplets": "map",
    "fedsurg": "macro_f1",
}
ONE = {"batch_size": 2, "epochs": 0, "iterations": 1, "warmup_rounds": 0.0, "start": "file"}


def job(name):
    """Return a job of the folder, of one short round, and the layout and task of its rendered sites."""
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
    site, start = load_site(file), pretrained(tmp_path, **seen_note({"cholec80": ["video02", "video03"]}))
    (test,) = site.split["test"]
    with pytest.raises(ValueError, match=rf"mae\.safetensors has seen 1 of the test's videos of cholect45 \({test}\)"):
        set_up_site(made, site, start_weights=start)
