"""SERQ and fine-tuning at the server of whole federations: after a kill, beside LOCAL pieces, without good data."""

import pytest
import torch

from shared_components.core.method import load_method
from shared_components.core.partition import Role, Slice
from shared_components.core.serq import FineTuning, Quantification, check_beforehand
from shared_components.federation.messages import FederationError
from shared_components.federation.server import runner as server_side
from shared_components.federation.site import site_setup as bench_side
from shared_components.networks import tiny
from shared_components.networks.protocols import Encodes
from tests.changed_method import changed
from tests.federation.conftest import make_job, same

SERQ = Quantification(batches=2, pretraining=2)


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
        fields = {
            "partition": own_filters,
            "server_update": update,
            "requires_network": Encodes,
            "requires_kinds": kinds,
        }
        fields["server_check"] = check_beforehand if isinstance(update, Quantification) else None
        method = changed(load_method("fedavg"), **fields)
        for side in (server_side, bench_side):
            monkeypatch.setattr(side, "load_method", lambda name, **arguments: method)
        return make_job("fedavg", bundle="toy", **changes)

    return job


@pytest.fixture
def options(scenes, tmp_path):
    """Return a function that names two sites, a server with the third one's frames, and a folder."""
    return lambda name: {"names": ("site-1", "site-2"), "folder": tmp_path / name, "server_data": scenes[2]}


@pytest.mark.parametrize("update", [SERQ, FineTuning(2)])
def test_a_killed_run_ends_bit_equal(play, federate, options, update):
    job = play(update, rounds=2)
    straight = federate(job, **options("a")).run()
    federate(job, **options("b")).run(until=1).replies()  # killed when all sites have trained round 1
    again = federate(job, **options("b"), resume=True).run()
    assert again.resumed and straight.server.state.round == again.server.state.round == 2
    assert same(straight.weights(), again.weights()) and same(straight.server.state.kept, again.server.state.kept)


def test_the_server_keeps_both_models_optimizers_the_descriptor_and_the_running_mean(play, federate, options):
    server = federate(play(SERQ, rounds=2), **options("a")).run().server
    kept = server.state.kept
    assert kept["memory/average"].shape == kept["memory/descriptor"].shape == (16, 8, 16)
    steps = {name: int(value) for name, value in kept.items() if name.endswith("r:/0/step")}
    steps |= {name: int(value) for name, value in kept.items() if name.endswith("pretrained/0/step")}
    assert steps == {"optimizer:/0/step": 4, "optimizer:pretrained/0/step": 6}  # pre-training counts
    first, second = (r for r in server.records if r["kind"] == "aggregation")
    assert set(first["loss"]) - set(second["loss"]) == {"pretraining segmentation"}
    assert set(second["loss"]) == {
        "pretrained segmentation", "descriptor", "global segmentation", "representation",
    }  # fmt: skip
    scores = {"pretraining_batches", "pretraining_before", "pretraining_best"}
    assert first["seconds_pretraining"] < first["seconds_training"] and "seconds_pretraining" not in second
    assert set(first["serq"]) - set(second["serq"]) == scores
    assert 0 <= first["serq"]["pretraining_before"] <= first["serq"]["pretraining_best"] <= 1
    assert second["serq"]["descriptor_square"] > 0 and second["serq"]["average_square"] > 0


def own_of(federation, site):
    _, tensors, _ = federation.files(site).load()
    found = {name: value for name, value in tensors.items() if "encoder.3.weight[0:8]" in name}
    assert found
    return found


def test_the_servers_training_changes_what_is_sent_and_leaves_what_is_the_sites_own(play, federate, options, scenes):
    plain = federate(play(None, rounds=1), **options("a")).run()
    quantified = federate(play(SERQ, rounds=1), **options("b")).run()
    sent = quantified.asked.messages
    assert set(sent) == {"site-1", "site-2"}
    assert not any("[0:8]" in name or "encoder.1." in name for m in sent.values() for name in m.pieces)
    for site in ("site-1", "site-2"):
        assert same(own_of(plain, site), own_of(quantified, site))
    before, after = plain.server.state.models.shared, quantified.server.state.models.shared
    assert before.keys() == after.keys() and "encoder.3.weight[8:16]" in after
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    trained = {name for name in after if not name.startswith("past.")}  # what is over time has no part in it
    assert changed == trained


@pytest.mark.parametrize("update", [SERQ, FineTuning()])
def test_a_server_without_data_says_so_before_the_first_round(play, federate, update):
    with pytest.raises(FederationError, match="trains at the server, and this one has no data of its own"):
        federate(play(update), names=("site-1", "site-2"))


def test_a_run_whose_frames_have_another_size_now_stops_with_one_sentence(play, federate, options, monkeypatch):
    """A job's own size cannot change (`runs.open_run`); what the memory holds is looked at all the same."""
    job = play(SERQ, rounds=2)
    federate(job, **options("a")).run(until=1)
    again = federate(job, **options("a"), resume=True)
    again.server.state.kept["memory/descriptor"] = torch.zeros(16, 4, 4)
    with pytest.raises(FederationError, match=r"the server cannot train: serq: the descriptor .* \(16, 4, 4\)"):
        again.run()


def test_a_bundle_whose_network_has_no_decode_is_refused_before_the_first_round(play, federate, options, toy_bundle):
    job, config = play(SERQ), toy_bundle / "toy" / "configs" / "train.yaml"
    config.write_text(config.read_text().replace("networks.tiny.Mapped", "networks.tiny.Tiny"))
    with pytest.raises(FederationError, match=r"fedavg needs a network with a way .* Tiny has none"):
        federate(job, **options("a"))
