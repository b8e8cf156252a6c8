"""What every method must keep; methods are found by listing the folder."""

from contextlib import nullcontext

import pytest
import torch

from shared_components.core.aggregators.mean import mean_pieces
from shared_components.core.bundle import load_bundle
from shared_components.core.method import Context, Models, Profile, Update, load_method, method_names
from shared_components.core.partition import Role, cut, partition_network
from shared_components.networks.bundle_config import build_network, bundle_for
from tests.federation.conftest import same
from tests.methods.toys import SEGMENTATION, card, frames
from tests.narrow import make_narrow

SITES = ["site-1", "site-2", "site-10"]


@pytest.fixture(scope="module", params=method_names())
def built(request):
    """Return a method, and the network that is its own in a quarter of its width, with its partition."""
    torch.manual_seed(0)
    method = load_method(request.param)
    with pytest.MonkeyPatch.context() as patch:
        make_narrow(patch)
        network = build_network(load_bundle(bundle_for(request.param)).network)
    return method, network, partition_network(network, method.partition)


def make_context(number=0, round=0, **known):
    return Context(
        round=round,
        task=SEGMENTATION,
        generator=torch.Generator().manual_seed(number),
        sites=len(SITES),
        items={"style": [[torch.rand(3).tolist(), (torch.rand(3) + 0.1).tolist()] for _ in SITES]},
        **known,
    )


def make_batch(number=0):
    return frames((64, 64), seed=number)  # SAM2 takes square ones alone


def sent(network, partition):
    return cut(network.state_dict(), partition, Role.GLOBAL, Role.MIXED)


_recent = {}  # aggregation leaves its inputs alone, so that a method's tests may share them


def federation(method, network, partition, sites=SITES, seeds=range(10)):
    """Models as sent, and one update per site that moved them a little, with what the method measures."""
    key = (method.name, tuple(sites), tuple(seeds))
    if key not in _recent:
        if len(_recent) > 2:
            _recent.clear()
        _recent[key] = _federation(method, network, partition, sites, seeds)
    return _recent[key]


def _federation(method, network, partition, sites, seeds):
    initial = sent(network, partition)
    shared = {n: initial[n] for n in partition.with_roles(Role.GLOBAL)}
    mixed = {n: initial[n] for n in partition.with_roles(Role.MIXED)}
    models = Models(shared, {site: dict(mixed) for site in sites})
    profiles = [Profile(site, 20, card("background", "a")) for site in sites]
    updates = []
    for number, (seed, site) in enumerate(zip(seeds, sites, strict=False)):
        generator = torch.Generator().manual_seed(seed)
        pieces = {n: v + 0.01 * torch.randn(v.shape, generator=generator) for n, v in initial.items()}
        context = make_context(seed, received=initial)
        extras = method.local.measure(network, [make_batch(seed)], context, partition) if method.local.measure else {}
        updates.append(Update(site, 0, pieces, extras, samples=10 + number))
    return models, method.server.aggregator.init(partition, models, profiles), updates


def test_every_method_describes_itself_and_gives_every_tensor_a_role(built):
    method, _, partition = built
    assert method.about.partition.startswith("all GLOBAL") == (partition.roles == {Role.GLOBAL})
    assert method.about.label and method.about.paper and all(vars(method.about).values())
    assert method.about.secure_sums.partition(":")[0] in ("yes", "no")
    idea = method.about.idea  # one sentence, without the words of papers
    assert idea.endswith(".") and idea.count(".") == 1 and idea[0].isupper() and len(idea) <= 160
    assert not any(word in idea for word in ("GLOBAL", "MIXED", "LOCAL", "lambda", "_"))
    _, network, partition = built
    assert {piece.tensor for piece in partition} == set(network.state_dict())


def test_order_of_arrival_changes_no_bit_and_aggregation_leaves_its_inputs_alone(built):
    method, network, partition = built
    models, state, updates = federation(method, network, partition)
    before = {n: v.clone() for n, v in (state | models.shared | updates[0].pieces).items()}
    orders = ([0, 1, 2], [2, 1, 0], [1, 2, 0])
    results = [method.server.aggregator.apply(state, partition, models, [updates[i] for i in o]) for o in orders]
    for other in results[1:]:
        assert same(results[0].models.shared, other.models.shared) and same(results[0].state, other.state)
        assert all(same(results[0].models.mixed[s], other.models.mixed[s]) for s in results[0].models.mixed)
    assert same(before, state | models.shared | updates[0].pieces)


OWN_STEPS = {"fedadam", "fedavgm", "fedhca2", "fedst", "qfedavg"}  # of the server


def test_one_site_gets_back_what_it_trained_and_an_absent_site_a_whole_model(built):
    method, network, partition = built
    models, state, updates = federation(method, network, partition, sites=["a"])
    too_few = pytest.raises(ValueError, match=r"\d sites") if method.requires.min_sites > 1 else nullcontext()
    with too_few:
        result = method.server.aggregator.apply(state, partition, models, updates)
        assert same(result.models.of("a"), updates[0].pieces) or method.name in OWN_STEPS
    models, state, updates = federation(method, network, partition, ["a", "b", "c", "d"])
    result = method.server.aggregator.apply(state, partition, models, updates[:3])
    assert result.models.of("d").keys() == models.of("d").keys()
    assert all(torch.isfinite(value).all() for value in result.models.of("d").values())


def test_what_is_measured_passes_the_checks_of_site_and_server(built):
    method, network, partition = built
    models, _, updates = federation(method, network, partition)
    assert set(updates[0].extras) == set(method.local.extras)
    for group, check in method.local.extras.items():
        check(updates[0].extras[group], models.shared)
        declared = check.shapes(models.shared, network.state_dict())
        assert declared == {name: tuple(value.shape) for name, value in updates[0].extras[group].items()}
        with pytest.raises(ValueError):
            check({**updates[0].extras[group], "frame": torch.zeros(3, 32, 64)}, models.shared)


def test_a_weighted_sum_is_declared_exactly_where_the_aggregator_reads_nothing_else(built):
    """The sites' mean in the place of their updates gives the same models and state, or the method declares nothing."""
    method, network, partition = built
    assert method.about.secure_sums.startswith("yes") == method.server.weighted_sum_only
    models, state, updates = federation(method, network, partition)
    mean = Update("sum", 0, mean_pieces(updates, models.shared), samples=sum(update.samples for update in updates))
    due = method.server.aggregator.apply(state, partition, models, updates)
    try:
        found = method.server.aggregator.apply(state, partition, models, [mean])
    except (KeyError, ValueError, IndexError):
        found = None
    if method.server.weighted_sum_only:
        assert not method.local.extras and not models.mixed[SITES[0]] and models.shared
    alike = found is not None and near(found, due)
    if method.name not in ("local", "fedld"):  # one sends nothing; the other keeps all directions of so unlike changes
        assert alike == method.server.weighted_sum_only


def near(a, b):
    pairs = [(a.state, b.state), (a.models.shared, b.models.shared), (a.models.broadcast, b.models.broadcast)]
    pairs += [(a.models.mixed[site], b.models.mixed[site]) for site in b.models.mixed]
    return all(
        x.keys() == y.keys() and all(torch.allclose(x[n].double(), y[n].double(), 1e-3, 1e-6) for n in x)
        for x, y in pairs
    )


@pytest.mark.parametrize("round", [0, 1])
def test_the_objective_gives_finite_terms_that_reach_the_network(built, round):
    method, network, partition = built
    models, state, updates = federation(method, network, partition)
    broadcast = method.server.aggregator.apply(state, partition, models, updates).models.broadcast if round else {}
    context = make_context(round=round, received=sent(network, partition), broadcast=broadcast)
    terms = method.local.objective(network, make_batch(), context)
    assert all(torch.isfinite(term.value) and term.value.requires_grad for term in terms)


def test_an_unknown_method_or_argument_is_named():
    with pytest.raises(ValueError, match=r"'fedsgd' does not exist; use one of .*fedavg"):
        load_method("fedsgd")
    with pytest.raises(ValueError, match="momentun"):
        load_method("fedavg", momentun=0.9)
