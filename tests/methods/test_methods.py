"""What every method must keep; methods are found by listing the folder."""

from itertools import permutations

import pytest
import torch

from shared_components.bundle_config import build_network, bundles_folder, load_bundle
from shared_components.losses import segmentation_loss
from shared_components.method import Context, Models, Profile, Update, load_method, method_names
from shared_components.partition import Role, cut, partition_network

SITES = ["site-1", "site-2", "site-10"]


def bundle_of(method):
    return method if (bundles_folder() / method / "configs" / "train.yaml").is_file() else "pvt_fpn"


@pytest.fixture(scope="module", params=method_names())
def built(request):
    torch.manual_seed(0)
    method = load_method(request.param)
    network = build_network(load_bundle(bundle_of(request.param)).network)
    return method, network, partition_network(network, method.rule)


def federation(method, network, partition, sites=SITES):
    """Models as sent, and one update per site that moved them a little."""
    initial = cut(network.state_dict(), partition, Role.GLOBAL, Role.MIXED)
    shared = {n: initial[n] for n in partition.with_roles(Role.GLOBAL)}
    mixed = {n: initial[n] for n in partition.with_roles(Role.MIXED)}
    models = Models(shared, {site: dict(mixed) for site in sites})
    profiles = [Profile(site, 10, ("background", "a")) for site in sites]
    updates = []
    for number, site in enumerate(sites):
        generator = torch.Generator().manual_seed(number)
        pieces = {n: v + 0.01 * torch.randn(v.shape, generator=generator) for n, v in initial.items()}
        sensitivity = {n: torch.rand(v.shape, generator=generator) for n, v in shared.items()}
        extras = {"sensitivity": sensitivity} if method.measure else {}
        updates.append(Update(site, 0, pieces, extras, samples=10 + number))
    return models, method.aggregator.init(partition, models, profiles), updates


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def test_every_tensor_of_the_state_has_a_role(built):
    _, network, partition = built
    assert {piece.tensor for piece in partition} == set(network.state_dict())


def test_order_of_arrival_changes_no_bit(built):
    method, network, partition = built
    models, state, updates = federation(method, network, partition)
    results = [method.aggregator.apply(state, partition, models, list(o)) for o in permutations(updates)]
    for other in results[1:]:
        assert same(results[0].models.shared, other.models.shared) and same(results[0].state, other.state)
        assert all(same(results[0].models.mixed[s], other.models.mixed[s]) for s in SITES)


def test_aggregation_leaves_its_inputs_alone(built):
    method, network, partition = built
    models, state, updates = federation(method, network, partition)
    before = {n: v.clone() for n, v in (state | models.shared | updates[0].pieces).items()}
    method.aggregator.apply(state, partition, models, updates)
    assert same(before, state | models.shared | updates[0].pieces)


def test_one_site_alone_gets_back_what_it_trained(built):
    method, network, partition = built
    models, state, updates = federation(method, network, partition, sites=["a"])
    result = method.aggregator.apply(state, partition, models, updates)
    assert same(result.models.of("a"), updates[0].pieces)


def test_an_absent_site_still_receives_a_whole_model(built):
    method, network, partition = built
    models, state, updates = federation(method, network, partition)
    result = method.aggregator.apply(state, partition, models, updates[:2])
    assert result.models.of("site-10").keys() == models.of("site-10").keys()
    assert all(torch.isfinite(value).all() for value in result.models.of("site-10").values())


def test_no_local_piece_is_asked_for(built):
    method, network, partition = built
    models, _, _ = federation(method, network, partition)
    assert not set(models.of("site-1")) & set(partition.with_roles(Role.LOCAL))


def test_the_objective_gives_finite_terms_that_reach_the_network(built):
    method, network, _ = built
    context = Context(
        round=0,
        segmentation=segmentation_loss,
        generator=torch.Generator().manual_seed(0),
        styles=(torch.rand(3, 3), torch.rand(3, 3) + 0.1),
    )
    batch = {"image": torch.rand(2, 3, 32, 64), "label": torch.randint(0, 4, (2, 32, 64))}
    terms = method.objective(network, batch, context)
    assert all(torch.isfinite(term.value) and term.value.requires_grad for term in terms)


def test_an_unknown_method_or_argument_is_named():
    with pytest.raises(ValueError, match="'fedsgd' does not exist; there are fedavg"):
        load_method("fedsgd")
    with pytest.raises(ValueError, match="momentun"):
        load_method("fedavg", momentun=0.9)
