"""Two segmentation sites and one depth site in one federation, in one process."""

import json
import math
import re
from itertools import combinations, pairwise

import cv2
import pytest
import torch
from safetensors.torch import load_file

from shared_components.networks.checkpoints import load_metadata
from tests.flare.conftest import SITES, run_here
from tests.flare.simulator import SERVER, edit, tiny_job
from tests.narrow import make_narrow

pytestmark = pytest.mark.slow

KINDS = dict(zip(SITES, ("segmentation", "segmentation", "depth"), strict=True))
OWN_WORDS = {"segmentation": ("Dice", "IoU", "HD95", "ASSD"), "depth": ("RMSE", "MAE", "Abs rel", "δ &lt; 1.25")}
JOBS = ("mat_fl", "fedhca2", "fedavg_cluster")


@pytest.fixture(scope="module", params=JOBS)
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


def test_the_report_has_a_part_per_task_and_no_number_across_tasks(launch):
    page = launch.page.read_text()
    for title in ("Segmentation: shaft, wrist, clasper (site-1, site-2)", "Depth (site-3)"):
        assert page.count(f'<h3 class="task">{title}</h3>') >= 2  # pictures and scores
    tables = re.findall(r"<table.*?</table>", page, flags=re.S)
    kinds = []
    for table in tables:
        named = {kind for kind, words in OWN_WORDS.items() if any(word in table for word in words)}
        assert len(named) <= 1, table
        if named:
            kinds.append(*named)
            sites = {site for site in SITES if f">{site}<" in table}
            assert sites <= {site for site, kind in KINDS.items() if kind in named}
            assert ("mean over sites" in table) <= (named == {"segmentation"})
    assert set(kinds) == set(OWN_WORDS)
    console = launch.output.partition("finished\n")[2]
    assert "mean over sites" not in console.partition("Depth (site-3): RMSE mm on the validation split")[2]


def test_each_task_has_its_own_pictures_with_four_panels(launch):
    page = launch.page.read_text()
    for site, kind in KINDS.items():
        pictures = sorted((launch.run / site / "overlays").glob("validation-*.png"))
        assert len(pictures) == 3
        for path in pictures:
            record = json.loads(path.with_suffix(".json").read_text())
            for panel in ("frame", "truth", "prediction"):
                assert f'alt="{site}, {record["video"]}, frame {record["frame"]}: {panel}' in page
        picture = cv2.imread(str(pictures[0]))
        boxes = [panel["box"] for panel in json.loads(pictures[0].with_suffix(".json").read_text())["panels"]]
        assert len(boxes) == 4
        for left, right in pairwise(boxes):  # white between them
            assert (picture[left[1] : left[1] + left[3], left[0] + left[2] : right[0]] == 255).all()
        below = picture[-26:].astype(int)  # under the panels: the names of classes, or the bar
        coloured = (below.max(2) - below.min(2) > 60).mean(axis=1).max()
        assert coloured > 0.5 if kind == "depth" else coloured < 0.1


def test_unseen_sites_of_each_task_get_a_model(launch):
    files = rounds(launch, "outsider")[-1]["files"]
    assert sorted(files.values()) == ["model-depth.safetensors", "model-segmentation.safetensors"]
    depth = load_file(launch.run / "server" / "model-depth.safetensors")
    alone = models(launch)["site-3"]
    assert all(torch.equal(value, alone[name]) for name, value in depth.items())
    assert all(math.isfinite(float(value.sum())) for value in depth.values())
