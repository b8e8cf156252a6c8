"""Averages over rounds around any aggregator, in three readings, and the learning rates of their cycles."""

import pytest
import torch

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.aggregators.server_optimizers import ServerMomentum
from shared_components.core.aggregators.weight_averaging import Averaged, Averaging, cycled, delivered
from shared_components.core.method import Models, load_method
from shared_components.core.partition import Partition
from tests.methods.toys import partition, profiles, shared, updates

TAKING = ("centralised", "fedadam", "fedavg", "fedavgm", "fedmedian", "fedsam", "krum", "multi_krum", "qfedavg")


def mean_of(rounds, **settings):
    """Return how much each model weighs in the end, by its number: round t makes theta^(t+1), a unit vector."""
    aggregator = Averaged(WeightedMean(), Averaging(**settings))
    models = Models({"w": torch.eye(rounds + 1, dtype=torch.float64)[0]}, {})
    state = aggregator.init(partition(), models, profiles(1))
    for round in range(rounds):
        result = aggregator.apply(state, partition(), models, updates([torch.eye(rounds + 1)[round + 1].tolist()]))
        state, models = result.state, result.models
    found = delivered(state, models).shared["w"].tolist()
    return {number: pytest.approx(weight) for number, weight in enumerate(found) if weight}


def test_of_15_or_20_rounds_each_reading_takes_its_own_models():
    assert {11: 0.8, 13: 1 / 15, 14: 1 / 15, 15: 1 / 15} == mean_of(15, start=12, reading="paper")
    assert {13: 1 / 3, 14: 1 / 3, 15: 1 / 3} == mean_of(15, start=12)
    assert dict.fromkeys(range(10, 16), 1 / 6) == mean_of(15, start=9, reading="as_released")
    assert {16: 0.5, 20: 0.5} == mean_of(20, start=15, cycle=4)
    assert {14: 4 / 5, 17: 1 / 5} == mean_of(20, start=15, cycle=4, reading="paper")
    assert {19: 1.0} == mean_of(20, start=15, cycle=4, reading="as_released")
    assert {1: 1 / 3, 2: 1 / 3, 3: 1 / 3} == mean_of(3, start=0, reading="paper")


def test_the_mean_is_kept_in_float64_with_the_bits_of_its_recursion_beside_the_training():
    aggregator = Averaged(WeightedMean(), Averaging(start=1, cycle=2))
    state = aggregator.init(partition(), shared(), profiles(1))
    models = shared()
    assert delivered(state, models) is models
    for round in range(5):
        result = aggregator.apply(state, partition(), models, updates([[1.0 + 2 * round, 0.0]]))
        state, models = result.state, result.models
    assert models.shared["w"].tolist() == [9.0, 0.0]
    assert delivered(state, models).shared["w"].tolist() == [5.0, 0.0]
    assert result.report == {"averaged_rounds": 2} and state["average/w"].dtype == torch.float64
    torch.manual_seed(0)
    values, mean = torch.randn(5, 1000), torch.zeros(1000, dtype=torch.float64)
    aggregator, models = Averaged(WeightedMean(), Averaging(start=0)), Models({"w": torch.zeros(1000)}, {})
    state = aggregator.init(partition(), models, profiles(1))
    for count, value in enumerate(values):
        state = aggregator.apply(state, partition(), models, updates([value.tolist()])).state
        mean = mean + (value.to(torch.float64) - mean) / (count + 1)
    assert torch.equal(state["average/w"], mean)


def test_the_inner_aggregator_keeps_its_state_and_integers_are_not_averaged():
    inner, models = ServerMomentum(0.9, 1.0), shared()
    outer = Averaged(inner, Averaging(start=0))
    alone, beside = inner.init(partition(), models, profiles(1)), outer.init(partition(), models, profiles(1))
    for values in ([[1.0, 2.0]], [[3.0, 5.0]]):
        plain = inner.apply(alone, partition(), models, updates(values))
        found = outer.apply(beside, partition(), models, updates(values))
        assert torch.equal(plain.models.shared["w"], found.models.shared["w"])
        assert all(torch.equal(value, found.state[name]) for name, value in plain.state.items())
        alone, beside, models = plain.state, found.state, plain.models
    aggregator = Averaged(WeightedMean(), Averaging(start=0))
    models = Models({"steps": torch.tensor(3)}, {})
    state = aggregator.init(Partition(()), models, profiles(1))
    assert delivered(state | {"averaged": torch.tensor(1)}, models).shared["steps"].item() == 3


def test_learning_rates_cycle_from_near_the_jobs_down_to_the_least():
    assert [cycled(round, 4, 0.2) for round in range(4, 9)] == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.8])
    swa = Averaging(start=6, cycle=1, rate=0.25)
    assert [swa.rates(round) for round in (5, 6, 7)] == [None, 0.25, 0.25]
    assert Averaging(start=6).rates(6) is None


@pytest.mark.parametrize("name", TAKING)
def test_every_such_method_takes_it(name):
    method = load_method(name, swa={"start": 3, "cycle": 2, "reading": "as_released", "rate": 0.5})
    plain = load_method(name)
    assert isinstance(method.server.aggregator, Averaged) and method.server.finish is delivered
    assert method.server.aggregator.inner == plain.server.aggregator and plain.server.finish is None
    assert method.requires.min_rounds == 5 and method.local.rates(4) == 0.75 and plain.local.rates(4) is None
    assert method.server.weighted_sum_only == plain.server.weighted_sum_only


@pytest.mark.parametrize("swa, sentence", [
    ({}, "'swa.start' is missing; add it"), ({"start": -1}, "swa.start is -1; it is a whole number"),
    ({"start": 1, "cycle": 0}, "swa.cycle is 0"),
    ({"start": 1, "reading": "Paper"}, "swa.reading is 'Paper'; use one of mean, paper, as_released"),
    ({"start": 1, "rate": 2}, "swa.rate is 2"), ({"strat": 1}, "unknown key 'swa.strat'; did you mean 'start'"),
    (3, "swa is 3; write its settings as 'name: value'"),
])  # fmt: skip
def test_wrong_settings_are_refused_by_one_sentence(swa, sentence):
    with pytest.raises(ValueError, match=f"^fedavg: {sentence}"):
        load_method("fedavg", swa=swa)
