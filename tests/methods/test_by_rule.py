"""Methods that differ from FedAvg by a rule or a term: local, centralised, FedProx, Ditto, FedPer, FedRep, FedBN."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from shared_components.core import training as local_training
from shared_components.core.aggregators.mean import FirstSite
from shared_components.core.bundle import load_bundle
from shared_components.core.losses import segmentation_loss
from shared_components.core.method import Models, load_method
from shared_components.core.partition import Role, cut, partition_network
from shared_components.federation.messages.parse import parse_request
from shared_components.federation.setup.site_setup import set_up_site
from shared_components.methods.ditto import NearReceived, TwoModels, personal_model
from shared_components.methods.fedprox import Proximal
from shared_components.networks.bundle_config import build_network
from tests.federation.conftest import TINY, empty, narrow  # noqa: F401
from tests.methods.toys import LINE, Line, context, frames, names, shared, step, updates

BATCH = frames()


@pytest.fixture
def network():
    torch.manual_seed(0)
    return build_network(load_bundle("pvt_fpn").network)


def test_local_training_sends_no_weights_and_ends_where_each_site_would_alone(federate, tmp_path, job_on_toy):
    together = federate(job_on_toy("local"), folder=tmp_path / "a").enrol()
    assert all(empty(reply) for reply in together.replies().values())
    together.run().finish()
    assert not together.weights()
    alone = federate(job_on_toy("fedavg"), folder=tmp_path / "b", names=["site-1"]).run().finish()
    ours, theirs = (load_file(f.server.folder / "site-1" / "model.safetensors") for f in (together, alone))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_centralised_training_sees_all_sites_frames_and_gives_one_model_to_all(federate, job_on_toy):
    federation = federate(job_on_toy("centralised")).run()
    records = [r for r in federation.server.records if r["kind"] == "site" and r["round"] == 0]
    assert [bool(record["loss"]) for record in records] == [True, False, False]
    request = parse_request("finish", federation.asked.messages["site-1"])
    runner, job = federation.sites["site-1"], federation.server.job
    pool = runner._training_samples(set_up_site(job, runner.find_site(job, 0)), request)
    assert {frame.site for frame in pool.samples} == {"site-1", "site-2", "site-3"} and len(pool) == 12
    weights = federation.weights()
    shared = {n.partition("/")[2]: v for n, v in weights.items() if n.startswith("site-1/")}
    assert all(torch.equal(v, weights[f"site-3/{n}"]) for n, v in shared.items())


def test_centralised_training_of_one_site_is_fedavg_and_the_first_site_must_answer(federate, tmp_path, job_on_toy):
    methods = ("centralised", "fedavg")
    runs = [federate(job_on_toy(m), folder=tmp_path / m, names=["site-1"]).run().weights() for m in methods]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[1])
    given, start = updates([[1.0], [2.0]]), Models(shared([0.0]).shared, {site: {} for site in names(2)})
    assert step(FirstSite(), start, given[::-1]).models.shared["w"].item() == 1.0
    with pytest.raises(ValueError, match="site-1 trains for all sites"):
        step(FirstSite(), start, given[1:])


@pytest.mark.parametrize("budget, steps", [("steps", 2), ("epochs", 6)])
def test_the_budget_is_one_sites_steps_or_all_sites(federate, budget, steps, job_on_toy):
    federation = federate(job_on_toy("centralised", rounds=1, arguments={"budget": budget})).run()
    assert float(federation.files("site-1").load()[1]["optimizer:/0/step"]) == steps


RECEIVED = {"bias": torch.tensor([0.0, 2.0]), "more": torch.tensor([0.5])}


class Point(Line):
    def __init__(self):
        super().__init__()
        self.more = nn.Parameter(torch.tensor([3.0]))


def test_the_proximal_term_is_half_mu_times_the_squared_distance_over_all_tensors_and_as_released_pulls_nothing():
    network, known = Point(), context(received=RECEIVED)
    terms = Proximal(0.2)(network, LINE, known)
    assert terms[1].value.item() == pytest.approx(0.1 * (1 + 16 + 6.25))
    released = load_method("fedprox", mu=0.2, mode="as_released").local.objective(network, LINE, known)
    assert released[1].value.item() > 0 and not released[1].value.requires_grad
    terms[1].value.backward()
    assert network.bias.grad.tolist() == pytest.approx([0.2, -0.8]) and network.more.grad.item() == pytest.approx(0.5)


def test_without_radius_or_mu_it_is_fedavg_bit_by_bit_and_mu_holds_sites_back(federate, tmp_path, job_on_toy):
    def run(method, **arguments):
        federation = federate(job_on_toy(method, arguments=arguments), folder=tmp_path / f"{method}{arguments}").enrol()
        return federation.server.state.models.shared, federation.run().server.state.models.shared

    start, plain = run("fedavg")
    (_, flat), (_, sharp) = run("fedsam", rho=0.0), run("fedsam")
    (_, free), (_, held) = run("fedprox", mu=0.0), run("fedprox", mu=1000.0)
    assert all(torch.equal(plain[name], flat[name]) and torch.equal(plain[name], free[name]) for name in plain)
    assert any(not torch.equal(plain[name], sharp[name]) for name in plain)
    moved = [sum(float((end[n] - start[n]).square().sum()) for n in start) for end in (plain, held)]
    assert moved[1] < moved[0]


def test_the_distance_term_is_half_lambda_times_the_square_and_a_site_uses_its_own_model():
    terms = NearReceived(0.5)(Line(), LINE, context(received={"bias": torch.tensor([0.0, 1.0])}))
    assert [term.name for term in terms] == ["segmentation", "distance"]
    assert terms[1].value.item() == pytest.approx(0.5 * 0.5 * (1 + 9))
    assert [term.name for term in NearReceived(0.0)(Line(), LINE, context())] == ["segmentation"]
    state = {"bias": torch.zeros(2)}
    assert personal_model(state, {}) is state
    assert personal_model(state, {"personal/bias": torch.ones(2)})["bias"].tolist() == [1, 1]


class Work:
    """A LocalWork on the one batch, with plain AdamW."""

    def __init__(self, network, known):
        self.network, self.context = network, known
        self.method = load_method("ditto")
        self.partition = partition_network(network, self.method.partition)
        self.optimizers = {}

    def train(self, objective=None, *, network=None, iterations=None, key=""):
        network = network or self.network
        settings = load_bundle("pvt_fpn", TINY).training
        optimizer = self.optimizers.setdefault(key, local_training.make_optimizer(network, settings))
        known, batches = (self.context, self.partition, objective), [LINE] * self.context.iterations
        return local_training.TrainingSteps(network, optimizer, self.method, *known).run(batches)


@pytest.mark.parametrize("strength", [0.0, 5.0])
def test_the_own_model_goes_on_from_itself_and_the_common_one_from_what_was_received(strength):
    received, own = {"bias": torch.tensor([1.0, -2.0])}, torch.tensor([4.0, 4.0])
    known = context(received=received, memory={"personal/bias": own}, iterations=3)
    work, plain, mine = Work(Line(), known), Line(), Line()
    losses = TwoModels(NearReceived(strength))(work)
    mine.load_state_dict({"bias": own})
    for network, pull in ((plain, 0.0), (mine, strength)):
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            loss = segmentation_loss(network(LINE["image"]), LINE["label"])
            (loss + pull / 2 * (network.bias - received["bias"]).square().sum()).backward()
            optimizer.step()
    torch.testing.assert_close(work.network.bias, plain.bias)
    torch.testing.assert_close(known.memory["personal/bias"], mine.bias.detach())
    assert {"segmentation", "personal_segmentation"} <= set(losses)


def test_in_a_federation_the_common_model_is_fedavgs_and_the_saved_ones_are_own(federate, tmp_path, job_on_toy):
    federation = federate(job_on_toy("ditto", rounds=1), folder=tmp_path / "a").run().finish()
    plain = federate(job_on_toy("fedavg", rounds=1), folder=tmp_path / "b").run()
    ours, theirs = federation.server.state.models.shared, plain.server.state.models.shared
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    saved = [load_file(federation.server.folder / s / "model.safetensors") for s in federation.server.state.sites]
    name = "head.weight"
    assert not torch.equal(saved[0][name], saved[1][name]) and not torch.equal(saved[0][name], ours[name])


def test_the_own_model_survives_between_rounds(federate, tmp_path, job_on_toy):
    job, sites = job_on_toy("ditto"), ("site-1", "site-2")
    straight = federate(job, folder=tmp_path / "a", names=sites).run_leaving(tmp_path / "b", trained=())
    again = federate(job, folder=tmp_path / "b", names=sites, resume=True).run()
    for name in sites:
        files = [federation.files(name).load()[1] for federation in (straight, again)]
        kept = [{n: v for n, v in tensors.items() if n.startswith("memory/")} for tensors in files]
        assert kept[0] and all(torch.equal(value, kept[1][n]) for n, value in kept[0].items())


@pytest.mark.parametrize("phase", ["head", "body"])
def test_fedreps_frozen_half_does_not_move_by_a_bit_even_with_momentum_and_decay(network, phase):
    """Both halves train first, so that AdamW has momentum for all; then steps of one phase only."""
    method, plain = load_method("fedrep"), load_method("fedavg")
    partition = partition_network(network, method.partition)
    settings = load_bundle("pvt_fpn", {**TINY, "weight_decay": 0.5}).training
    optimizer = local_training.make_optimizer(network, settings)
    known = context(iterations=4)
    local_training.TrainingSteps(network, optimizer, plain, known, partition).run([BATCH])
    before = {n: v.clone() for n, v in network.state_dict().items()}
    assert {float(optimizer.state[p]["step"]) for p in network.parameters()} == {1.0}
    network.train()
    for iteration in (0, 1) if phase == "head" else (2, 3):
        known.iteration = iteration
        losses = local_training.train_step(network, optimizer, method, BATCH, known, partition)
        assert set(losses) == {phase}
    trained, frozen = (Role.LOCAL, Role.GLOBAL) if phase == "head" else (Role.GLOBAL, Role.LOCAL)
    same = {}
    for role in Role:
        was, now = cut(before, partition, role), cut(network.state_dict(), partition, role)
        # what is zero may have no gradient: a query's bias where there is one key
        same[role] = [torch.equal(value, was[name]) for name, value in now.items() if was[name].any()]
    assert all(same[frozen]) and not any(same[trained])
    by_name = dict(network.named_parameters())
    counted = {p.tensor: float(optimizer.state[by_name[p.tensor]]["step"]) for p in partition}
    assert all(counted[p.tensor] == (1.0 if p.role is frozen else 3.0) for p in partition)


def test_fedrep_counts_its_phases_within_a_round(federate, job_on_toy):
    job = job_on_toy("fedrep", rounds=1, training={**TINY, "iterations": 4}, arguments={"head_share": 0.25})
    federation = federate(job, names=["site-1"]).run()
    losses = [r["loss"] for r in federation.server.records if r["kind"] == "site"]
    assert set(losses[0]) == {"head", "body"}
    steps = sorted({float(v) for n, v in federation.files("site-1").load()[1].items() if n.endswith("/step")})
    assert steps == [1.0, 3.0]


@pytest.mark.parametrize("share, iterations, phases", [
    (0.5, 4, "head head body body"),
    (0.1, 4, "head body body body"),  # rounds to no step of the head
    (0.91, 4, "head head head body"),  # rounds to no step of the body
    (0.01, 2, "head body"), (0.99, 2, "head body"), (0.5, 1, "segmentation"),
])  # fmt: skip
def test_each_phase_of_fedrep_has_a_step_and_a_single_step_trains_both(network, share, iterations, phases):
    objective = load_method("fedrep", head_share=share).local.objective
    terms = [objective(network, BATCH, context(iteration=i, iterations=iterations))[0] for i in range(iterations)]
    roles = {"head": Role.LOCAL, "body": Role.GLOBAL, "segmentation": None}
    assert [term.name for term in terms] == phases.split()
    assert [term.role for term in terms] == [roles[term.name] for term in terms]


def test_a_step_of_several_batches_is_of_one_phase_of_fedrep(network):
    objective = load_method("fedrep", head_share=0.5).local.objective
    for accumulate, phases in ((2, "head head body body"), (4, "segmentation " * 4), (3, "segmentation " * 4)):
        known = [context(iteration=i, iterations=4, accumulate=accumulate) for i in range(4)]
        assert [objective(network, BATCH, one)[0].name for one in known] == phases.split()


def test_fedbn_keeps_exactly_the_normalisation_layers_by_type_with_their_statistics(network):
    partition = partition_network(network, load_method("fedbn").partition)
    norms = [name for name, module in network.named_modules() if isinstance(module, (nn.LayerNorm, nn.GroupNorm))]
    expected = {f"{name}.{parameter}" for name in norms for parameter in ("weight", "bias")}
    assert set(partition.with_roles(Role.LOCAL)) == expected and len(expected) > 50
    layers_only = partition_network(network, load_method("fedbn", norms=["layer"]).partition).with_roles(Role.LOCAL)
    assert 0 < len(layers_only) < len(expected)
    network = nn.ModuleDict({"bn": nn.Linear(1, 1), "plain": nn.BatchNorm2d(2)})
    local = set(partition_network(network, load_method("fedbn", norms=["batch"]).partition).with_roles(Role.LOCAL))
    kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert local == {f"plain.{kind}" for kind in kinds}
