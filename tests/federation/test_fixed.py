"""A part that is fixed in a running federation; learning rates and loss terms of parts."""

import pytest
import torch
from safetensors.torch import load_file

from shared_components.core.bundle import load_bundle
from shared_components.core.method import Term, load_method, method_names
from shared_components.core.partition import Role, partition_network
from shared_components.federation.messages import FederationError, total_bytes
from shared_components.federation.setup import site_setup as setup_side
from shared_components.networks.bundle_config import weightless
from shared_components.networks.checkpoints import save_weights
from shared_components.networks.tiny import Tiny
from tests.federation.conftest import TINY, fine_tune, make_job, same
from tests.federation.test_participation import held_out_model_of
from tests.kinds import one_of_each_kind

FIXED = {"fixed": ["encoder"]}
PLAIN = sorted(name for name in method_names() if not load_method(name).requires.network)

NETWORK = weightless(load_bundle("pvt_fpn").network)


def keeps_only_the_encoder(method):
    """Return whether all that a method keeps at a site, or all that it exchanges for each, lies in the encoder."""
    partition = partition_network(NETWORK, load_method(method).partition)
    kept = [partition.with_roles(role) for role in (Role.LOCAL, Role.MIXED)]
    return any(names and all(name.startswith("encoder.") for name in names) for names in kept)


REFUSED = {*filter(keeps_only_the_encoder, PLAIN)}


def toy_job(method="fedavg", **changes):
    return make_job(method, **{"bundle": "toy", "training": FIXED, **changes})


def encoder_of(state):
    return {name: value for name, value in state.items() if name.startswith("encoder.")}


def initial(federation):
    """Return the encoder that every site begins with."""
    find = federation.sites["site-1"].find_site
    network = setup_side.set_up_site(federation.server.job, find(federation.server.job, 0)).network
    return encoder_of({name: value.clone() for name, value in network.state_dict().items()})


def fixed_from_end_to_end(federation):
    """Run and finish; check that the encoder neither moves nor travels at any time."""
    encoder = initial(federation)
    assert encoder
    sent = []
    while federation.asked.task != "finish":
        replies = federation.replies()
        sent += [*replies.values(), *federation.asked.messages.values()]
        federation.send(replies)
    groups = [group for message in sent for group in (message.pieces, *message.groups.values())]
    assert not any("encoder." in name for group in groups for name in group)
    federation.finish()
    for site in federation.server.state.sites:
        model = load_file(federation.server.folder / site / "model.safetensors")
        assert same(encoder_of(model), encoder)
    rounds = [r for r in federation.server.records if r["kind"] == "site" and "loss" in r]
    for record in rounds:
        declared = federation.server.state.models.of(record["site"])
        up = {role: size for role, size in record["bytes"]["up"].items() if role in ("global", "mixed")}
        assert sum(up.values()) == total_bytes(declared)
    return encoder


@pytest.mark.usefixtures("toy_bundle")
@pytest.mark.parametrize("method", one_of_each_kind(set(PLAIN) - REFUSED))
def test_a_fixed_encoder_never_moves_and_never_travels(federate, method):
    """BatchNorm's running statistics are among what stays."""
    encoder = fixed_from_end_to_end(federation := federate(toy_job(method)))
    assert encoder["encoder.1.num_batches_tracked"] == 0
    torch.manual_seed(2022)
    fresh = Tiny().state_dict()
    model = load_file(federation.server.folder / "site-1" / "model.safetensors")
    assert {n for n in model if not torch.equal(model[n], fresh[n])} == {n for n in model if n not in encoder}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", *sorted(set(method_names()) - {*PLAIN, "surgfed"})])
def test_a_fixed_encoder_of_the_baselines_network_never_moves_and_never_travels(federate, method):
    """SurgFed's network fixes it even without the setting."""
    fixed_from_end_to_end(federate(make_job(method, rounds=1, training={**TINY, **FIXED})))


OWN = r"all {} tensors of the method are fixed, such as encoder\..*name fewer parts"


@pytest.mark.parametrize(
    "method, training, sentence",
    [
        ("mat_fl", FIXED, OWN.format("MIXED")),
        ("feddp", FIXED, OWN.format("LOCAL")),
        ("fedavg", {"fixed": ["encodr"]}, r"training\.fixed names 'encodr'.* did you mean 'encoder'"),
        ("fedavg", {"learning_rates": {"head_globl": 0.1}}, "names 'head_globl'.* did you mean 'head_global'"),
    ],
)
def test_a_methods_own_part_or_one_that_is_not_there_is_refused_at_enrolment(federate, method, training, sentence):
    with pytest.raises(FederationError, match=sentence):
        federate(make_job(method, training={**TINY, **training})).enrol()


@pytest.mark.usefixtures("toy_bundle")
def test_without_the_setting_the_encoder_and_its_statistics_move(federate):
    federation = federate(toy_job(training={}))
    encoder = initial(federation)
    moved = encoder_of(federation.run().server.state.models.shared)
    assert moved.keys() == encoder.keys() and not any(torch.equal(moved[n], encoder[n]) for n in moved)


@pytest.fixture
def weights(tmp_path):
    """Return the file of another encoder."""
    torch.manual_seed(7)
    save_weights(tmp_path / "encoder.safetensors", Tiny().encoder.state_dict())
    return tmp_path / "encoder.safetensors"


@pytest.mark.usefixtures("toy_bundle")
def test_a_resumed_run_ends_bit_equal_and_wants_the_fixed_weights_that_it_began_with(federate, tmp_path):
    straight = federate(toy_job("fedper"), folder=tmp_path / "a").run()
    federate(toy_job("fedper")).run(until=1).replies(["site-2"])
    federation = federate(toy_job("fedper"), resume=True)
    replies = federation.replies()
    for reply in replies.values():
        reply.header["fixed"] = "0" * 64
    with pytest.raises(FederationError, match="site-1 enrols with fixed weights other than the job's"):
        federation.send(replies)
    assert same(straight.weights(), federate(toy_job("fedper"), resume=True).run().weights())


@pytest.mark.usefixtures("toy_bundle")
def test_a_server_that_trains_needs_the_sites_fixed_weights(play, federate, weights, scenes, tmp_path):
    play(server_update=fine_tune)
    names = ("site-1", "site-2")
    federate(toy_job(rounds=1), names=names, server_data=scenes[2]).run()
    job = toy_job(rounds=1, training={**FIXED, "start": "file"})
    with pytest.raises(FederationError, match=r"the server cannot train: .* start is 'file', but no file is given"):
        federate(job, names=names, server_data=scenes[2])
    torch.manual_seed(8)
    save_weights(tmp_path / "others.safetensors", Tiny().encoder.state_dict())
    ours = {"names": names, "server_data": scenes[2], "start_weights": weights}
    other = federate(job, **ours)
    other.server.training.start_weights = tmp_path / "others.safetensors"
    with pytest.raises(FederationError, match="the server cannot train: its fixed weights are not those of the sites"):
        other.run()
    assert federate(job, **ours).run().server.state.round == 1


@pytest.mark.usefixtures("toy_bundle")
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
@pytest.mark.parametrize("consent", [["model"], []], ids=str)
def test_a_held_out_site_gets_a_whole_model_of_those_that_consent_alone(publishing, method, consent):
    """Without consent there is none: the server never saw what is fixed."""
    federation = publishing(toy_job(method, rounds=1), consent, consent, [])
    encoder = initial(federation)
    record, path = held_out_model_of(federation.run().finish())
    assert path.exists() == bool(record["files"]) == bool(consent)
    if not consent:
        return
    assert record["sites"] == ["site-1", "site-2"]
    model = load_file(path)
    assert same(encoder_of(model), encoder) and model.keys() == Tiny().state_dict().keys()
    Tiny().load_state_dict(model)


def changes(federation):
    """Return how far each part's parameters have moved at most."""
    before, after = Tiny(), Tiny()
    torch.manual_seed(2022)
    before = Tiny()
    after.load_state_dict(federation.server.state.models.shared)
    moved = {}
    for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True):
        part = "decoder" if name.startswith("past") else name.partition(".")[0]
        moved[part] = max(moved.get(part, 0.0), float((new - old).detach().abs().max()))
    return moved


def one_step(**training):
    return toy_job(rounds=1, training={"iterations": 1, "learning_rate": 1e-3, "weight_decay": 0.0} | training)


@pytest.mark.usefixtures("toy_bundle")
def test_parts_train_at_their_own_learning_rates(federate):
    """The first step of AdamW moves every weight by its learning rate."""
    job = one_step(learning_rates={"encoder": 0.0, "head": 1e-2})
    moved = changes(federate(job, names=["site-1"]).run())
    assert moved["encoder"] == 0
    assert moved["decoder"] == pytest.approx(1e-3, rel=1e-2)
    assert moved["head"] == pytest.approx(1e-2, rel=1e-2)


@pytest.mark.usefixtures("toy_bundle")
def test_terms_reach_their_parts_alone(play, federate):
    """One term reaches the head, one (of nothing) the encoder, none the decoder."""

    def objective(network, batch, context):
        loss = context.task.loss(context.task.predict(network, batch), batch)
        return [Term("last", loss, parts=("head",)), Term("first", 0 * loss, parts=("encoder",))]

    play(local_objective=objective)
    federation = federate(one_step(), names=["site-1"]).run()
    assert changes(federation) == {"encoder": 0, "decoder": 0, "head": pytest.approx(1e-3, rel=1e-2)}
    assert set(federation.server.records[0]["loss"]) == {"last", "first"}
