"""A server that trains (SERQ, fine-tuning): after a kill, beside LOCAL pieces; wrong data are refused."""

import pytest
import torch
import yaml
from safetensors.torch import save_file

from shared_components.core.method import load_method
from shared_components.core.partition import Role, Slice
from shared_components.core.serq import FineTuning, Quantification, check_beforehand
from shared_components.data.samples import LABELLED, samples
from shared_components.data.site_file import load_site
from shared_components.federation.messages import FederationError, SiteRefusal
from shared_components.federation.runs.run_folder import server_files
from shared_components.federation.runs.store import load_tensors, save_tensors
from shared_components.federation.server import runner as server_side
from shared_components.federation.server.training import ServerData
from shared_components.federation.setup import site_setup as site_side
from shared_components.federation.setup.find_site import SERVER
from shared_components.networks import tiny
from shared_components.networks.protocols import Encodes
from shared_components.reporting.costs import server_seconds
from shared_components.reporting.records import load_run
from tests.changed_method import changed
from tests.federation.conftest import TINY, Federation, fine_tune, make_job, render, rewritten, same

SERQ = Quantification(batches=2, pretraining=2)
NAMES = ("site-1", "site-2")


class Mapped(tiny.Tiny):
    """Tiny, with an encoder that returns a list of maps and a decode of them; of clips it has no need here."""

    def __init__(self, *, out_channels: int = 4) -> None:
        super().__init__(out_channels=out_channels)
        self.encoder = torch.nn.Sequential(*self.encoder, Listed())

    def _features(self, image):
        maps = self.encoder(image)[-1]
        return maps, maps

    def decode(self, features):
        logits = self.head(self.decoder(features[-1]))
        return torch.nn.functional.interpolate(logits, scale_factor=4.0, mode="bilinear")


class Listed(torch.nn.Module):
    def forward(self, features):
        return [features]


def own_filters(network):
    """Keep the first half of the second convolution's filters, and all normalisation of the encoder, at the site."""

    def slices(name, tensor, module):
        if name == "encoder.3.weight":
            return Slice(Role.LOCAL, 0, 8), Slice(Role.GLOBAL, 8, 16)
        norm = name.startswith(("encoder.1.", "encoder.4."))
        return (Slice(Role.LOCAL if norm else Role.GLOBAL),)

    return slices


@pytest.fixture
def play(monkeypatch, toy_bundle):
    """Return a function that makes a job of FedAvg with own filters and a server that trains."""
    monkeypatch.setattr(tiny, "Mapped", Mapped, raising=False)
    config = toy_bundle / "toy" / "configs" / "train.yaml"
    config.write_text(config.read_text().replace("networks.tiny.Tiny", "networks.tiny.Mapped"))
    assert "Mapped" in config.read_text()

    def job(update, *, kinds=None, **changes):
        method = changed(
            load_method("fedavg"), partition=own_filters, server_update=update, requires_network=Encodes,
            requires_kinds=kinds, server_check=check_beforehand if isinstance(update, Quantification) else None,
        )  # fmt: skip
        for side in (server_side, site_side):
            monkeypatch.setattr(side, "load_method", lambda name, **arguments: method)
        return make_job("fedavg", bundle="toy", **changes)

    return job


@pytest.fixture
def options(scenes, tmp_path):
    """Return a function that names two sites, a server with the third one's frames, and a folder."""
    return lambda name: {"names": NAMES, "folder": tmp_path / name, "server_data": scenes[2]}


@pytest.mark.parametrize("update", [SERQ, FineTuning(2)])
def test_a_killed_run_ends_bit_equal(play, federate, options, update):
    job = play(update, rounds=2)
    straight = federate(job, **options("a")).run_leaving(options("b")["folder"], trained=None)  # all have trained
    again = federate(job, **options("b"), resume=True).run()
    assert again.resumed and straight.server.state.round == again.server.state.round == 2
    assert same(straight.weights(), again.weights()) and same(straight.server.state.kept, again.server.state.kept)


def test_the_server_keeps_both_models_optimizers_the_descriptor_and_the_running_mean(play, federate, options):
    server = federate(play(SERQ, rounds=2), **options("a")).run().server
    kept = server.state.kept
    assert kept["memory/average"].shape == kept["memory/descriptor"].shape == (16, 8, 16)
    steps = {n: int(value) for n, value in kept.items() if n.endswith(("r:/0/step", "pretrained/0/step"))}
    assert steps == {"optimizer:/0/step": 4, "optimizer:pretrained/0/step": 6}  # pre-training counts
    first, second = (r for r in server.records if r["kind"] == "aggregation")
    assert set(first["loss"]) - set(second["loss"]) == {"pretraining segmentation"}
    assert set(second["loss"]) == {"pretrained segmentation", "descriptor", "global segmentation", "representation"}
    scores = {"pretraining_batches", "pretraining_before", "pretraining_best"}
    assert first["seconds_pretraining"] < first["seconds_training"] and "seconds_pretraining" not in second
    assert set(first["serq"]) - set(second["serq"]) == scores
    assert 0 <= first["serq"]["pretraining_before"] <= first["serq"]["pretraining_best"] <= 1
    assert second["serq"]["descriptor_square"] > 0 and second["serq"]["average_square"] > 0


def test_the_servers_training_changes_what_is_sent_and_leaves_what_is_the_sites_own(play, federate, options, scenes):
    plain = federate(play(None, rounds=1), **options("a")).run()
    quantified = federate(play(SERQ, rounds=1), **options("b")).run()
    assert plain.server.training.data is None and server_files(plain.server.folder).load()[2]["own"] is None
    sent = quantified.asked.messages
    assert set(sent) == {"site-1", "site-2"}
    assert not any("[0:8]" in name or "encoder.1." in name for m in sent.values() for name in m.pieces)
    for site in NAMES:
        kept = [f.files(site).load()[1] for f in (plain, quantified)]
        own = [{name: value for name, value in paths.items() if "encoder.3.weight[0:8]" in name} for paths in kept]
        assert own[0] and same(*own)
    before, after = plain.server.state.models.shared, quantified.server.state.models.shared
    assert before.keys() == after.keys() and "encoder.3.weight[8:16]" in after
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {name for name in after if not name.startswith("past.")}  # what is over time has no part in it


def test_a_bundle_whose_network_has_no_decode_is_refused_before_the_first_round(play, federate, options, toy_bundle):
    job, config = play(SERQ), toy_bundle / "toy" / "configs" / "train.yaml"
    config.write_text(config.read_text().replace("networks.tiny.Mapped", "networks.tiny.Tiny"))
    with pytest.raises(FederationError, match=r"fedavg needs a network that predicts .* Tiny does not qualify"):
        federate(job, **options("a"))


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """Return a function that renders a site of a layout, once."""
    sites = {}

    def once(layout, task="segmentation", **sizes):
        if (layout, task) not in sites:
            sizes = {"frames_per_video": 3, "layout": layout, "tasks": [task], **sizes}
            (sites[layout, task],) = render(tmp_path_factory.mktemp(layout), sites=1, **sizes)
        return sites[layout, task]

    return once


@pytest.fixture
def refusal(tmp_path, scenes):
    """Return a function that begins a run and returns the sentence that ends it, before any site has trained."""

    def refusal(job, server_data, sites=None, **known):
        with pytest.raises(FederationError) as caught:
            files = sites or scenes[:2]
            Federation(job, tmp_path / "runs", files, NAMES, server_data=server_data, **known).enrol()
        assert "\n" not in str(caught.value) and not list(tmp_path.rglob("round-*.safetensors"))
        return str(caught.value)

    return refusal


def test_a_frame_that_cannot_be_read_is_named(play, refusal, rendered, tmp_path):
    path = rendered("endovis2018")
    frame = samples(load_site(path), "train", LABELLED)[0].images[0]
    before = frame.read_bytes()
    frame.write_bytes(before[: len(before) // 2])
    try:
        sentence = refusal(play(SERQ), path)
    finally:
        frame.write_bytes(before)
    assert sentence.startswith("the server cannot train: site server: ") and str(frame) in sentence


def test_the_servers_classes_must_be_read_as_the_sites_and_the_refusal_says_how(play, refusal, scenes, tmp_path):
    path = rewritten(scenes[2], tmp_path / "s", classes="foreground")
    assert refusal(play(SERQ), path) == (
        f"the server cannot train: {path}: its task is segmentation of background, instrument, and the sites' is "
        "segmentation of background, shaft, wrist, clasper; write 'classes: parts' there"
    )
    coarse = [rewritten(path, tmp_path / f"s{n}", classes="shaft_manipulator") for n, path in enumerate(scenes[:2])]
    sentence = refusal(play(SERQ), scenes[2], sites=coarse)
    assert sentence.endswith("; write 'classes: shaft_manipulator' there") and str(scenes[2]) in sentence
    fitting = rewritten(scenes[2], tmp_path / "fitting", classes="shaft_manipulator")
    run = Federation(play(SERQ, rounds=1), tmp_path / "r", coarse, NAMES, server_data=fitting).enrol()
    assert run.server.training.data.profile.card == run.server.state.profiles["site-1"].card


def test_data_of_another_task_are_refused(play, refusal, rendered):
    path = rendered("scared", "depth")
    sentence = refusal(play(fine_tune), path)
    assert sentence.startswith(f"the server cannot train: {path}: its task is depth of mm, and the sites' is segm")
    assert sentence.endswith("; name data there that have the sites' task")
    sentence = refusal(play(SERQ, kinds=("segmentation",)), path)
    assert sentence.startswith(f"the server cannot train: {path}: fedavg is for segmentation, and the site's task ")


def test_the_server_begins_from_what_the_sites_begin_from(play, scenes, tmp_path):
    """Else the weights that are the sites' own, LOCAL, would be others here."""
    torch.manual_seed(1)
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for file in files:
        save_file({n: v.contiguous() for n, v in Mapped().state_dict().items()}, file)
    job = play(SERQ, rounds=1, training={**TINY, "start": "file"})
    run = Federation(job, tmp_path / "r", scenes[:2], NAMES, server_data=scenes[2], start_weights=files[0])
    run.enrol()
    run = Federation(job, tmp_path / "q", scenes[:2], NAMES, server_data=scenes[2], start_weights=files[0])
    for site in run.sites.values():
        site.start_weights = files[1]
    with pytest.raises(FederationError, match=r"the server cannot train: it begins from file \(\w+\), and the"):
        run.enrol()


def test_a_network_of_which_frames_train_nothing_is_refused(refusal, scenes):
    """The other layers, over time and for selection, see no single frames."""
    job = make_job("fedst", training={**TINY, "fixed": ["encoder", "decoder", "head"]})
    assert refusal(job, scenes[2]).startswith(
        "the server cannot train: serq: training.fixed has all parts that predict from"
    )


def test_a_resumed_run_with_a_memory_of_other_frames_ends_before_its_round(play, federate, options):
    """A job's size cannot change (`runs.open_run`), but the bundle's size can."""
    run = federate(play(SERQ, rounds=2), **options("a")).run(until=1)
    folder = run.server.folder / "server"
    (file,) = folder.glob("round-*.safetensors")
    of = f"{folder.relative_to(folder.parents[2])}, round 1"
    tensors, values = load_tensors(file, of=of)
    assert tensors["kept|memory/descriptor"].shape == (16, 8, 16)
    save_tensors(file, tensors | {"kept|memory/descriptor": torch.zeros(16, 4, 4)}, values, of=of)
    with pytest.raises(FederationError, match=r"cannot train: serq: the descriptor .* is \(16, 4, 4\), but "):
        federate(play(SERQ, rounds=2), **options("a"), resume=True)
    run.server.state.kept["memory/descriptor"] = torch.zeros(16, 4, 4)  # looked at in the round itself all the same
    with pytest.raises(FederationError, match=r"the server cannot train: serq: the descriptor .* \(16, 4, 4\)"):
        run.run()


def test_still_images_at_the_server_repeat_themselves_as_clips(federate, rendered, tmp_path):
    """Sisvse has no time between two images; the rendered site.yaml records this."""
    stills = rendered("sisvse")
    text = stills.read_text()
    assert "history: false" in text
    films = [rendered("sar_rarp50", clip=4, interval=0.2)] * 2
    job = make_job("fedst", rounds=1, tasks={}, training={**TINY, "batch_size": 1, "iterations": 1})
    run = Federation(job, tmp_path / "r", films, NAMES, server_data=stills).enrol()
    assert all(len(sample.images) == 4 for sample in run.server.training.data.samples)
    assert all(len(set(sample.images)) == 1 for sample in run.server.training.data.samples)
    bad = rewritten(stills, tmp_path / "s", history=True)
    with pytest.raises(FederationError) as caught:
        Federation(job, tmp_path / "q", films, NAMES, server_data=bad)
    sentence = str(caught.value)
    expected = f"the server cannot train: site server: {bad}: the task needs clips of 4 frames 0.2 s apart"
    assert sentence.startswith(expected)
    assert sentence.endswith("or write 'history: false' in it, which repeats the frame")


def test_the_servers_data_have_a_profile_which_a_resume_compares(federate, play, options, scenes, tmp_path):
    run = federate(play(SERQ, rounds=2), **options("a")).run(until=1)
    own = run.server.training.data
    assert isinstance(own, ServerData) and own.profile.site == SERVER and own.profile.samples == 4
    own.check_beside(run.server.state.profiles)
    assert server_files(run.server.folder).load()[2]["own"]["samples"] == 4
    config = yaml.safe_load(scenes[2].read_text())
    (video,) = config["split"]["train"]
    shorter = rewritten(scenes[2], tmp_path / "s", split={**config["split"], "train": [{video: [0, 3]}]})
    again = federate(play(SERQ, rounds=2), **options("a") | {"server_data": shorter}, resume=True)
    with pytest.raises(FederationError, match=r"server has other data .* \(3 training frames now, 4 then\)"):
        again.enrol()


def test_what_the_file_says_during_a_run_changes_nothing(play, federate, options, scenes, tmp_path):
    """It was read and checked at enrolment, and is read again by a resume."""
    mine = rewritten(scenes[2], tmp_path / "s")
    both = [federate(play(SERQ, rounds=2), **options(n) | {"server_data": mine}).run(until=1) for n in "ab"]
    both[0].run()
    mine.write_text("")
    both[1].run()
    assert same(both[0].weights(), both[1].weights())
    with pytest.raises((FederationError, SiteRefusal), match="needs 'key: value' lines"):
        federate(play(SERQ, rounds=3), **options("a") | {"server_data": mine}, resume=True)


def test_the_sites_wait_for_what_the_record_says_and_no_longer(federate, options, play, monkeypatch):
    """With a clock that only counts 2 s of averaging, 7 s of the server's training and 30 s of the sites'."""
    now = [100.0]
    monkeypatch.setattr(server_side.time, "perf_counter", lambda: now[0])

    def teach(work, result):
        now[0] += 7.0
        return result, {"taught": 1.0}

    run = federate(play(teach, rounds=2), **options("a")).enrol()
    aggregator = run.server.method.server.aggregator
    average = type(aggregator).apply

    def slowly(self, *given):
        now[0] += 2.0
        return average(self, *given)

    monkeypatch.setattr(type(aggregator), "apply", slowly)
    for number in range(2):
        sent = run.server._open_round.since
        replies = run.replies()
        now[0] += 30.0 - (now[0] - sent)
        answered = now[0]
        record = run.send(replies)
        assert record["round"] == number
        assert (record["seconds_wall"], record["seconds"], record["seconds_training"]) == (30.0, 2.0, 7.0)
        assert run.server._open_round.since - answered == record["seconds"] + record["seconds_training"]
    waits = server_seconds(load_run(run.server.folder))
    assert waits == {0: (30.0, 2.0, 7.0), 1: (30.0, 2.0, 7.0)}
