"""Clips of four frames, 0.2 s apart, through whole federations of a network that takes them."""

import json

import pytest
import torch

from shared_components.core import evaluation
from shared_components.data.samples import samples
from shared_components.experiments.comparison.run import _costs
from shared_components.federation.messages import FederationError
from shared_components.federation.setup.site_setup import set_up_site
from shared_components.networks.checkpoints import load_metadata
from shared_components.networks.tiny import Tiny
from shared_components.reporting.report import build_report
from tests.federation.conftest import Federation, make_job, render, rewritten

CLIP = {"frames": 4, "interval": 0.2}
FOUR = "pvt_fpn_clips.PvtFpnClips"
KINDS = ("segmentation", "depth", "reconstruction")
pytestmark = pytest.mark.usefixtures("toy_bundle")


@pytest.fixture(scope="session")
def clips(tmp_path_factory):
    """Return by kind of task the site.yaml files of two sites whose videos have frames before the labelled ones."""

    layouts = {kind: "scared" if kind == "depth" else "sar_rarp50" for kind in KINDS}
    sizes = {"sites": 2, "clip": 4, "interval": 0.2, "frames_per_video": 3}
    return {k: render(tmp_path_factory.mktemp(k), tasks=[k], layout=layout, **sizes) for k, layout in layouts.items()}


@pytest.fixture
def federate(tmp_path, clips):
    """Return a function that makes a federation of two sites on clips."""

    def make(method="fedavg", kind="segmentation", *, sites=None, folder="runs", resume=False, **changes):
        job = make_job(method, **({"bundle": "toy", "tasks": {kind: CLIP}, "training": {}} | changes))
        return Federation(job, tmp_path / folder, sites or clips[kind], ("a", "b"), resume=resume)

    return make


@pytest.fixture
def seen(monkeypatch):
    """Return the shapes of the networks' inputs."""
    shapes, forward = [], Tiny.forward

    def watched(self, image):
        shapes.append(tuple(image.shape))
        return forward(self, image)

    monkeypatch.setattr(Tiny, "forward", watched)
    return shapes


@pytest.mark.pictures
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trains_validates_and_finishes_on_clips_and_a_comparison_and_the_report_know(federate, seen, kind):
    server = federate(kind=kind, rounds=1).run().finish().server
    folder = server.folder
    assert {shape[1:] for shape in seen} == {(4, 3, 32, 64)}
    info = json.loads((folder / "run.json").read_text())
    assert [card["frames"] for card in info["cards"].values()] == [4, 4]
    final = json.loads((folder / "a" / "final.json").read_text())
    assert final[info["metrics"][kind][0]["name"]]["mean"] >= 0
    assert len(list((folder / "a" / "overlays").glob("*.png"))) == 3
    assert {load_metadata(folder / party / "model.safetensors")["frames"] for party in ("a", "server")} == {"4"}
    seen.clear()
    assert _costs(server)["ms_frame"] > 0 and set(seen) == {(1, 4, 3, 32, 64)}
    build_report(folder, folder / "report.html")
    assert ", 4 frames" in (folder / "report.html").read_text()


def test_a_site_that_refuses_history_shows_its_frame_four_times(federate, clips, tmp_path):
    closed = [rewritten(clips["segmentation"][0], tmp_path / "closed", history=False), clips["segmentation"][1]]
    federation = federate(sites=closed)
    for name, different in (("a", 1), ("b", 4)):
        runner = federation.sites[name]
        setup = set_up_site(federation.server.job, runner.find_site(federation.server.job, "ab".index(name)))
        last = samples(setup.site, "train", setup.task.spec)[-1]
        assert len(last.images) == 4 and len(set(last.images)) == different
        image = setup.dataset([last])[0]["image"]
        assert image.shape == (4, 3, 32, 64)
        assert all(torch.equal(frame, image[-1]) for frame in image) == (name == "a")
    assert [r.header["card"]["frames"] for r in federation.replies().values()] == [
        4,
        4,
    ]  # it takes part in the same task


def test_sites_that_differ_in_frames_are_refused_at_enrolment(federate):
    federation = federate()
    replies = federation.replies()
    other = federate(folder="frames", tasks={}).replies()
    with pytest.raises(FederationError, match=r"a and b differ in their task .*clasper on clips of 4 frames and"):
        federation.send({"a": replies["a"], "b": other["b"]})


@pytest.mark.parametrize(
    ("built", "network", "numbers", "words"),
    [
        ("pvt_fpn.PvtFpn", {}, CLIP, "asks for clips of 4 frames, and PvtFpn takes single ones; write frames: 1"),
        (FOUR, {"temporal": False}, CLIP, "of 4 frames, and PvtFpnClips takes single .*; .* network.temporal: true"),
        (FOUR, {}, CLIP | {"frames": 3}, "of 3 frames, and PvtFpnClips takes 4; write frames: 4 for it in 'tasks'"),
        (FOUR, {"receptive_fields": [14, 7], "kernels": [2, 1]}, CLIP, "of 4 frames, and PvtFpnClips takes 2; write"),
    ],
)
def test_clips_and_the_networks_own_number_of_frames_must_agree(federate, toy_bundle, built, network, numbers, words):
    train = toy_bundle / "toy" / "configs" / "train.yaml"
    train.write_text(train.read_text().replace("tiny.Tiny", built))
    with pytest.raises(FederationError, match=words):
        federate(network=network, tasks={"segmentation": numbers}).enrol()


@pytest.mark.parametrize("method", ["pfedsis", "fedas", "fedseg"])
def test_a_method_for_another_network_refuses_this_one_before_the_first_round(federate, method):
    with pytest.raises(FederationError, match=f"{method} needs a network with a shared .* Tiny does not qualify"):
        federate(method).enrol()


def test_both_evaluations_show_the_network_clips_and_score_the_last_frame(federate, seen):
    federation = federate()
    setup = set_up_site(federation.server.job, federation.sites["a"].find_site(federation.server.job, 0))
    chosen = samples(setup.site, "validation", setup.task.spec)
    quick = evaluation.score_quickly(setup.network, setup.task, setup.dataset(chosen))
    whole = evaluation.score_fully(setup.network, setup.task, chosen, size=setup.size, split="validation")
    assert seen == [(3, 4, 3, 32, 64), *3 * [(1, 4, 3, 32, 64)]]  # three small frames, at once and one by one
    assert quick["frames"] == whole["frames"] == 3 and "hd95" in whole and "hd95" not in quick
