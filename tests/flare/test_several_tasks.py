"""Two segmentation sites and one depth site in one federation, in one process."""

import json
import math
from itertools import combinations

import pytest
import torch
from safetensors.torch import load_file

from shared_components.networks.checkpoints import load_metadata
from tests.flare.conftest import SITES, run_here
from tests.flare.simulator import SERVER, edit, tiny_job
from tests.narrow import make_narrow

pytestmark = pytest.mark.slow

KINDS = dict(zip(SITES, ("segmentation", "segmentation", "depth"), strict=True))


@pytest.fixture(scope="module", params=["mat_fl", "fedhca2", "fedavg_cluster"])
def launch(request, tmp_path_factory):
    """Return an ended run of a job on rendered sites with narrow networks."""
    folder = tmp_path_factory.mktemp(request.param)
    job, workspace = tiny_job(folder, request.param), folder / "ws"
    edit(job / SERVER, lambda config: config["workflows"][0]["args"]["training"].update(start="random"))
    with pytest.MonkeyPatch.context() as patch:
        make_narrow(patch)
        ended = run_here(job, workspace)
    assert ended.panics == []
    ended.name, ended.page = request.param, workspace / "report" / "index.html"
    return ended


def rounds(launch, kind="site"):
    lines = (launch.run / "server" / "rounds.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def models(launch):
    return {site: load_file(launch.run / site / "model.safetensors") for site in SITES}


def test_it_ends_well_and_every_site_learns_its_own_task(launch):
    models = launch.page.parent.parent / "models"
    words = f"surgfl: {launch.name} finished 2 rounds; models {models}, report {launch.page}"
    assert launch.last_line == words
    cards = json.loads((launch.run / "run.json").read_text())["cards"]
    assert {site: card["kind"] for site, card in cards.items()} == KINDS
    for record in rounds(launch):
        assert set(record["metrics"]) >= {"segmentation": {"dice"}, "depth": {"rmse"}}[KINDS[record["site"]]]
        assert set(record.get("loss", [KINDS[record["site"]]])) == {KINDS[record["site"]]}
    assert not [record for record in rounds(launch, "aggregation") if record["rejected"]]


def test_heads_have_the_channels_of_their_task_and_encoders_are_exchanged(launch):
    own = models(launch)
    assert [len(own[site]["head_global.bias"]) for site in SITES] == [4, 4, 1]
    shapes = [{n: v.shape for n, v in own[site].items() if n.startswith("encoder.")} for site in SITES]
    assert shapes[0] == shapes[1] == shapes[2]
    sent = [sum(r["bytes"]["up"].values()) for r in rounds(launch) if r["round"] == 0]
    encoder = sum(4 * v.numel() for n, v in own["site-1"].items() if n.startswith("encoder."))
    assert min(sent) >= encoder
    if launch.name != "fedavg_cluster":  # which sends heads, too, inside each task
        assert len(set(sent)) == 1


def test_sites_of_one_group_have_one_encoder_and_their_own_heads(launch):
    own, groups = models(launch), rounds(launch, "aggregation")[-1].get("groups", {})
    alike = {
        (a, b): all(torch.equal(own[a][n], own[b][n]) for n in own[a] if n.startswith("encoder."))
        for a, b in combinations(SITES, 2)
    }
    if launch.name == "fedhca2":  # each site has its own encoder
        assert not any(alike.values())
    else:
        assert alike == {(a, b): groups[a] == groups[b] for a, b in alike} and any(alike.values())
    same_head = torch.equal(own["site-1"]["head_global.weight"], own["site-2"]["head_global.weight"])
    assert same_head == (launch.name == "fedavg_cluster")


def test_the_best_model_has_the_highest_dice_or_the_lowest_error(launch):
    for site, kind in KINDS.items():
        metric, pick = {"segmentation": ("dice", max), "depth": ("rmse", min)}[kind]
        scores = [r["metrics"][metric]["mean"] for r in rounds(launch) if r["site"] == site]
        assert len(scores) == 3 and len(set(scores)) > 1
        best = load_metadata(launch.run / site / "best.safetensors")
        assert float(best[f"validation_{metric}"]) == pick(scores)
        assert int(best["round"]) == scores.index(pick(scores)) and best["task"] == kind


def test_unseen_sites_of_each_task_get_a_model(launch):
    files = rounds(launch, "outsider")[-1]["files"]
    assert sorted(files.values()) == ["model-depth.safetensors", "model-segmentation.safetensors"]
    depth = load_file(launch.run / "server" / "model-depth.safetensors")
    alone = models(launch)["site-3"]
    assert all(torch.equal(value, alone[name]) for name, value in depth.items())
    assert all(math.isfinite(float(value.sum())) for value in depth.values())
