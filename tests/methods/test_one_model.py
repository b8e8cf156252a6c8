"""One-model methods: what those with a step of the server share; q-FedAvg's loss; FedLD's decomposition and margin."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

from shared_components.core.aggregators.conflict import LayerwiseDecomposition, decomposed
from shared_components.core.exchange import scalar
from shared_components.core.method import Context, Models, Update, load_method, method_names
from shared_components.core.partition import Partition, Role, cut, partition_network
from shared_components.methods.fedld import squared_probability
from tests.methods.toys import SITES, Plain, context, frames, names, partition, shared, step, tensor, updates


@pytest.mark.parametrize("name, arguments, parent", [
    ("fedavgm", {"momentum": 0, "learning_rate": 1}, load_method("fedavg")),
    ("multi_krum", {"keep": 1}, load_method("krum")), ("trimmed_mean", {"trim": 0}, load_method("multi_krum")),
    ("qfedavg", {"q": 0}, load_method("trimmed_mean", trim=0)),
])  # fmt: skip
def test_limits_are_the_parent_method(name, arguments, parent):
    given = updates(SITES, extras={"loss": [1.0, 2.0, 3.0, 4.0, 5.0]})
    methods = (load_method(name, **arguments), parent)
    found, expected = (step(m.server.aggregator, shared(), given).models.shared["w"] for m in methods)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_robust_rules_need_three_sites_and_more_for_more_faults():
    needed = {name: load_method(name).requires.min_sites for name in method_names()}
    assert {name for name, sites in needed.items() if sites == 3} == {"fedmedian", "trimmed_mean", "krum", "multi_krum"}
    assert set(needed.values()) == {1, 3}
    assert [load_method("krum", faults=f).requires.min_sites for f in (0, 1, 2)] == [3, 5, 7]
    assert load_method("multi_krum", faults=1, keep=6).requires.min_sites == 7
    assert load_method("trimmed_mean", trim=2).requires.min_sites == 5


def batches(count=5, size=2):
    torch.manual_seed(0)
    image, label = torch.randn(count, 1, 2, 2), torch.randint(0, 2, (count, 2, 2))
    return [{"image": i, "label": y} for i, y in zip(image.split(size), label.split(size), strict=True)]


def site(network):
    partition = partition_network(network, load_method("qfedavg").partition)
    loss = nn.functional.cross_entropy
    return partition, Context(
        0, Plain(loss), torch.Generator(), received=cut(network.state_dict(), partition, Role.GLOBAL)
    )


def test_the_loss_is_that_of_the_received_weights_averaged_over_frames():
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Dropout(0.5)).train()
    partition, context = site(network)
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(network[0](b["image"]), b["label"]) for b in batches(size=1)]
        network[0].weight.mul_(-3)  # "training"
    after = {name: value.clone() for name, value in network.state_dict().items()}
    found = load_method("qfedavg").local.measure(network, batches(), context, partition)
    assert float(found["loss"]["value"]) == pytest.approx(float(sum(losses)) / 5, rel=1e-5)
    assert network.training and all(torch.equal(after[n], v) for n, v in network.state_dict().items())
    scalar(found["loss"], {})


def by_svd(changes, keep=0.8):
    """The rule in numpy and loops: left singular vectors of G instead of eigenvectors of G G^T."""
    G = np.array(changes, dtype=float)
    m = len(G)
    left, singular, _ = np.linalg.svd(G, full_matrices=False)
    count = max(1, int(keep * m))
    strengths = [s**2 / m for s in singular]
    total = np.zeros(G.shape[1])
    for g in G:
        rebuilt = np.zeros_like(g)
        for j in range(min(count, len(singular))):
            w = left[:, j] @ G
            if sum(1 for other in G if other @ w > 0) * 2 < m:
                w = -w
            projection = (g @ w) / (w @ w) * w
            length = math.sqrt(sum(v * v for v in projection))
            if length > 1e-9:
                rebuilt += strengths[j] / sum(strengths) * math.sqrt(g @ g) * projection / length
        total += rebuilt / m
    return total.tolist()


@pytest.mark.parametrize("sites, size", [(2, 3), (3, 7), (5, 4), (5, 30)])
def test_the_decomposition_is_the_rule_by_svd(sites, size):
    generator = torch.Generator().manual_seed(sites * size)
    changes = torch.randn(sites, size, generator=generator, dtype=torch.float64)
    assert decomposed(changes).tolist() == pytest.approx(by_svd(changes.tolist()), rel=1e-9, abs=1e-12)


def test_decomposition_by_hand_of_equal_still_and_orthogonal_changes():
    lengths = [math.sqrt(5), 2.0, math.sqrt(3)]
    expected = [5 / 12 * lengths[0] / 3, 4 / 12 * lengths[1] / 3, 0.0]
    assert decomposed(torch.diag(tensor(lengths))).tolist() == pytest.approx(expected)
    change = tensor([3.0, -4.0])
    torch.testing.assert_close(decomposed(torch.stack([change] * 4)), change)
    assert decomposed(torch.zeros(3, 4)).tolist() == [0.0] * 4
    assert torch.isfinite(decomposed(tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]))).all()


def test_the_first_round_is_the_mean_and_later_ones_the_decomposition():
    values = [[2.0, 2.0], [1.0, 4.0], [4.0, 2.0]]
    first = step(LayerwiseDecomposition(), shared(), updates(values))
    assert first.models.shared["w"].tolist() == [2.75, 2.5]
    start = first.models.shared["w"]
    second = step(LayerwiseDecomposition(), first.models, updates(values), first.state)
    moved = by_svd([[v - s for v, s in zip(value, start.tolist(), strict=True)] for value in values])
    expected = [s + m for s, m in zip(start.tolist(), moved, strict=True)]
    assert second.models.shared["w"].tolist() == pytest.approx(expected)


def test_order_changes_no_bit_and_counters_are_not_decomposed():
    first = step(LayerwiseDecomposition(), shared(), updates())
    given = updates([[2.5, 2.5], [1.0, 4.5], [4.0, 2.0], [1.5, 2.0], [9.0, -9.0]])
    results = [
        LayerwiseDecomposition().apply(first.state, partition(), first.models, list(order)).models.shared["w"]
        for order in list(permutations(given))[:30]
    ]
    assert all(torch.equal(results[0], other) for other in results)
    alone = LayerwiseDecomposition().apply(first.state, partition(), first.models, given[:1])
    assert torch.equal(alone.models.shared["w"], given[0].pieces["w"])
    models = Models({"steps": torch.tensor([4])}, {})
    given = [Update(s, 0, {"steps": torch.tensor([n])}) for s, n in zip(names(2), (7, 5), strict=True)]
    result = LayerwiseDecomposition().apply({}, Partition(()), models, given)
    assert result.models.shared["steps"].tolist() == [7] and not result.state


def test_the_margin_is_a_mean_or_sum_and_zero_is_the_tasks_loss():
    probabilities = [[0.5, 0.3, 0.2], [0.9, 0.05, 0.05]]
    logits = torch.tensor([[math.log(p) for p in pixel] for pixel in probabilities]).T.reshape(1, 3, 1, 2)
    squares = [sum(p * p for p in pixel) for pixel in probabilities]
    assert squared_probability(logits).item() == pytest.approx(sum(squares) / 2)
    assert squared_probability(logits, whole_batch=True).item() == pytest.approx(sum(squares))
    network, batch = torch.nn.Conv2d(3, 4, 1), frames((4, 4), count=1)
    off, on = (load_method("fedld", margin=m).local.objective(network, batch, context()) for m in (0.0, 0.5))
    assert [term.name for term in off] == ["segmentation"] and torch.equal(off[0].value, on[0].value)
    expected = 0.5 * math.log(1 + network(batch["image"]).softmax(1).square().sum(1).mean().item())
    assert on[1].value.item() == pytest.approx(expected, rel=1e-5)
