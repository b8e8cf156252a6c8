"""LHA against plain loops over numbers, Adam against torch's, and constructed rounds at the ends of psi."""

import math
import random

import pytest
import torch

from shared_components.core.aggregators.language_guided import LanguageGuided, adam_step, first_gate, site_vectors
from shared_components.core.card import Card
from shared_components.core.method import Models, Profile, Update
from shared_components.core.partition import Partition, Piece, Role
from tests.federation.conftest import same
from tests.methods.toys import names, tensor

SIZES = {"a.weight": (2, 3), "a.bias": (2,), "b.weight": (4,)}
TOY = Partition((*(Piece(name, Role.MIXED) for name in SIZES), Piece("own", Role.LOCAL)))
TEXTS = [[0.5, -0.2, 0.1], [0.1, 0.4, -0.3], [-0.6, 0.2, 0.9]]


def profiles(count=3, texts=TEXTS):
    items = [{"text_vector": {"encoder": "e", "values": t}} if t else {} for t in texts[:count]]
    return [Profile(site, 1, Card("depth"), own) for site, own in zip(names(count), items, strict=True)]


def drawn(seed):
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(shape, generator=generator) for n, shape in SIZES.items()}


def begin(count=3, texts=TEXTS, **arguments):
    aggregator = LanguageGuided(**arguments)
    models = Models({}, {site: drawn(number) for number, site in enumerate(names(count))})
    return aggregator, models, aggregator.init(TOY, models, profiles(count, texts))


def moved(models, seed=10, sites=None, changes=None):
    """One update per site, moved by numbers drawn from a seed, or by the given changes."""
    found = []
    for number, (site, own) in enumerate(models.mixed.items()):
        change = changes[site] if changes else drawn(seed + number)
        found.append(Update(site, 0, {n: own[n] + change[n] for n in SIZES}))
    return [u for u in found if sites is None or u.site in sites]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def softmax(row):
    powers = [math.exp(x) for x in row]
    return [p / sum(powers) for p in powers]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def number_of(gate, text):
    """u = MLP(text)."""
    rows, biases = gate["mlp.0.weight"].tolist(), gate["mlp.0.bias"].tolist()
    hidden = [max(dot(row, text) + bias, 0) for row, bias in zip(rows, biases, strict=True)]
    return dot(gate["mlp.1.weight"].tolist(), hidden) + float(gate["mlp.1.bias"])


def opened(gate, pooled, number):
    """1 + Eq. (5)."""
    return 1 + sigmoid(dot(gate["fc.weight"].tolist(), [pooled, number]) + float(gate["fc.bias"]))


def shares_of(deltas, attention):
    """Eq. (4)'s softmax."""
    if attention == "mean":
        return [[1 / len(deltas)] * len(deltas)] * len(deltas)

    def scale(a, b):
        return math.sqrt(dot(a, a) * dot(b, b)) if attention == "cosine" else math.sqrt(len(a))

    return [softmax([dot(a, b) / scale(a, b) for b in deltas]) for a in deltas]


def attended(gate, deltas, texts, attention="plain", released=False):
    """A~ of one tensor, site by site: Eqs. (3) to (6), or the gate before the attention."""
    words = [number_of(gate, text) for text in texts]
    if released:
        factors = [opened(gate, sum(d) / len(d), word) for d, word in zip(deltas, words, strict=True)]
        deltas = [[factor * v for v in d] for factor, d in zip(factors, deltas, strict=True)]
    mixes = [
        [sum(s * d[k] for s, d in zip(row, deltas, strict=True)) for k in range(len(deltas[0]))]
        for row in shares_of(deltas, attention)
    ]
    if released:
        return mixes
    factors = [opened(gate, sum(m) / len(m), word) for m, word in zip(mixes, words, strict=True)]
    return [[factor * v for v in m] for factor, m in zip(factors, mixes, strict=True)]  # Eq. (6)


def flat(update, models, name):
    return (update.pieces[name] - models.mixed[update.site][name]).flatten().tolist()


def gate_of(state):
    return {name.removeprefix("gate/"): value for name, value in state.items() if name.startswith("gate/")}


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("attention", ["plain", "cosine", "mean"])
def test_every_site_gets_what_plain_loops_over_the_equations_give(attention, released):
    aggregator, models, state = begin(attention=attention, released=released)
    updates = moved(models)
    result = aggregator.apply(state, TOY, models, updates)
    for name in SIZES:
        deltas = [flat(update, models, name) for update in updates]
        for update, due in zip(updates, attended(gate_of(state), deltas, TEXTS, attention, released), strict=True):
            trained = update.pieces[name].flatten().tolist()
            expected = [w + 0.1 * a for w, a in zip(trained, due, strict=True)]  # Eq. (7)
            found = result.models.mixed[update.site][name]
            assert found.shape == SIZES[name] and found.flatten().tolist() == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("attention", ["plain", "cosine"])
def test_psi_and_hypernetwork_learn_as_automatic_differentiation_through_the_weights_says(attention, released):
    """Eq. (8): backward(the last A~ times psi, minus this round's change), and a step of torch's Adam."""
    decay = 0.99 if released else 0.0
    aggregator, models, state = begin(attention=attention, released=released, decay=decay)
    updates = moved(models)
    first = aggregator.apply(state, TOY, models, updates)
    again = moved(first.models, seed=20)
    second = aggregator.apply(first.state, TOY, first.models, again)
    leaves = {n: v.clone().requires_grad_() for n, v in gate_of(state).items()}
    psi = torch.full((3, 3), 0.1, dtype=torch.float64, requires_grad=True)  # site, tensor
    words = torch.relu(tensor(TEXTS) @ leaves["mlp.0.weight"].T + leaves["mlp.0.bias"])
    words = words @ leaves["mlp.1.weight"] + leaves["mlp.1.bias"]
    outputs, grads = [], []

    def gated(values):
        factors = torch.stack([values.mean(1), words], 1) @ leaves["fc.weight"] + leaves["fc.bias"]
        return values * (1 + factors.sigmoid())[:, None]

    for number, name in enumerate(SIZES):
        V = torch.stack([tensor(flat(u, models, name)) for u in updates])  # (K, D)
        V = gated(V) if released else V
        unit = V / V.norm(dim=1, keepdim=True) if attention == "cosine" else V / V.shape[1] ** 0.25
        A = torch.softmax(unit @ unit.T, 1) @ V
        A = A if released else gated(A)
        outputs.append(psi[:, number].clamp(0, 1)[:, None] * A)
        now = torch.stack([tensor(flat(u, first.models, name)) for u in again])
        grads.append(now if released else -now)
    torch.autograd.backward(outputs, grads)
    torch.optim.Adam([psi, *leaves.values()], lr=1e-3, weight_decay=decay).step()
    for number, site in enumerate(names(3)):
        assert second.state[f"psi/{site}"].tolist() == pytest.approx(psi[number].tolist(), abs=1e-9)
    for name, value in leaves.items():
        torch.testing.assert_close(second.state[f"gate/{name}"], value.detach(), rtol=0, atol=1e-6)


def test_a_step_is_that_of_torchs_adam_and_the_hypernetwork_has_the_released_size():
    random.seed(1)
    weight = torch.nn.Parameter(tensor([0.3, -2.0]))
    adam = torch.optim.Adam([weight], lr=0.01, weight_decay=0.1)
    zeros = torch.zeros(2, dtype=torch.float64)
    state = {"w": tensor([0.3, -2.0]), "adam/first/w": zeros, "adam/second/w": zeros, "adam/steps/w": torch.tensor(0)}
    for _ in range(5):
        weight.grad = tensor([random.gauss(0, 1), random.gauss(0, 1e-5)])
        state |= adam_step(state, "w", weight.grad, rate=0.01, decay=0.1)
        adam.step()
        torch.testing.assert_close(state["w"], weight.detach(), rtol=1e-12, atol=1e-12)
    assert sum(value.numel() for value in first_gate(512, 0).values()) == 131_588
    assert same(first_gate(5, 1), first_gate(5, 1)) and not same(first_gate(5, 1), first_gate(5, 2))


def constructed(**arguments):
    """Two rounds: after the first, tensor ``a.weight`` goes on along what it was given, ``b.weight`` back."""
    aggregator, models, state = begin(**arguments)
    updates = moved(models)
    first = aggregator.apply(state, TOY, models, updates)
    given = {u.site: {n: first.models.mixed[u.site][n] - u.pieces[n] for n in SIZES} for u in updates}
    for own in given.values():
        own |= {"a.bias": torch.zeros(2), "b.weight": -own["b.weight"]}
    return aggregator.apply(first.state, TOY, first.models, moved(first.models, changes=given)).state


def test_psi_stays_between_0_and_1_and_can_return():
    low, high = constructed(psi=0.0005), constructed(psi=0.9995)
    assert low["psi/site-1"][2] == 0 and high["psi/site-1"][0] == 1
    aggregator, models, state = begin(psi=0.0)
    first = aggregator.apply(state, TOY, models, moved(models))
    again = moved(first.models)  # the same way once more
    assert bool((aggregator.apply(first.state, TOY, first.models, again).state["psi/site-1"] > 0).all())


def test_a_psi_of_zero_and_a_single_site_are_local_training():
    aggregator, models, state = begin(psi=0.0, rate=0.0)
    for seed in (10, 20):
        updates = moved(models, seed)
        result = aggregator.apply(state, TOY, models, updates)
        assert all(same(result.models.mixed[u.site], u.pieces) for u in updates)
        models, state = result.models, result.state
    aggregator, models, state = begin(1)
    for seed in (10, 20):
        updates = moved(models, seed)
        result = aggregator.apply(state, TOY, models, updates)
        assert same(result.models.mixed["site-1"], updates[0].pieces) and "entropy" not in result.report
        models, state = result.models, result.state


def test_absent_sites_keep_model_and_psi_and_a_site_by_itself_is_not_mixed():
    aggregator, models, state = begin()
    first = aggregator.apply(state, TOY, models, moved(models, sites=names(2)))
    assert same(first.models.mixed["site-3"], models.mixed["site-3"])
    second = aggregator.apply(first.state, TOY, first.models, moved(first.models, 20))
    assert second.state["psi/site-3"].tolist() == [0.1] * 3 and int(second.state["adam/steps/psi/site-3"]) == 0
    assert second.state["psi/site-1"].tolist() != [0.1] * 3
    pair, models_2, state_2 = begin(2)
    alone = pair.apply(state_2, TOY, models_2, moved(models_2))
    assert same(alone.models.mixed["site-1"], first.models.mixed["site-1"])
    aggregator, models, state = begin()
    first = aggregator.apply(state, TOY, models, moved(models))
    (update,) = moved(first.models, 20, sites=["site-2"])
    second = aggregator.apply(first.state, TOY, first.models, [update])
    assert same(second.models.mixed["site-2"], update.pieces)
    assert second.state["psi/site-2"].tolist() != [0.1] * 3  # of what it was given, it has learnt
    assert not any(name.startswith("last/") for name in second.state)


def test_a_state_that_was_saved_and_read_gives_the_same_bits_whatever_the_order():
    aggregator, models, state = begin()
    first = aggregator.apply(state, TOY, models, moved(models))
    again = moved(first.models, 20)
    read = {name: first.state[name].clone() for name in sorted(first.state, reverse=True)}
    turned = [Update(u.site, 1, {n: u.pieces[n] for n in reversed(u.pieces)}) for u in again[::-1]]
    straight, resumed = (aggregator.apply(s, TOY, first.models, u) for s, u in ((first.state, again), (read, turned)))
    assert same(straight.state, resumed.state)
    assert all(same(straight.models.mixed[site], resumed.models.mixed[site]) for site in names(3))


def test_texts_are_the_sites_own_each_others_or_none_and_a_site_without_text_is_named():
    def of(texts, given=TEXTS):
        return [v.tolist() for v in site_vectors(profiles(texts=given), texts).values()]

    assert of("own") == TEXTS and of("shuffled") == [TEXTS[1], TEXTS[2], TEXTS[0]]
    assert of("shuffled", [TEXTS[0], None, TEXTS[2]]) == [TEXTS[2], [0.0] * 3, TEXTS[0]]
    assert of("none") == [[0.0]] * 3
    aggregator, models, state = begin(texts=[TEXTS[0], None, TEXTS[2]])
    updates = moved(models)
    result = aggregator.apply(state, TOY, models, updates)
    assert result.report["without_text"] == ["site-2"]
    deltas = [flat(update, models, "b.weight") for update in updates]
    due = attended(gate_of(state), deltas, [TEXTS[0], [0.0] * 3, TEXTS[2]])[1]
    expected = [w + 0.1 * a for w, a in zip(updates[1].pieces["b.weight"].tolist(), due, strict=True)]
    assert result.models.mixed["site-2"]["b.weight"].tolist() == pytest.approx(expected, abs=2e-6)


def test_pieces_of_other_shapes_and_counters_stay_as_each_site_trained_them():
    partition = Partition((Piece("w", Role.MIXED), Piece("head", Role.MIXED), Piece("steps", Role.MIXED)))
    sizes = dict(zip(names(2), (2, 3), strict=True))
    models = Models(
        {}, {s: {"w": torch.zeros(2), "head": torch.zeros(k), "steps": torch.tensor(0)} for s, k in sizes.items()}
    )
    aggregator = LanguageGuided()
    state = aggregator.init(partition, models, profiles(2))
    sent = [
        Update(s, 0, {"w": torch.ones(2), "head": torch.ones(k), "steps": torch.tensor(k)}) for s, k in sizes.items()
    ]
    result = aggregator.apply(state, partition, models, sent)
    for update in sent:
        own = result.models.mixed[update.site]
        assert torch.equal(own["head"], update.pieces["head"]) and torch.equal(own["steps"], update.pieces["steps"])
        assert bool((own["w"] > 1).all())
