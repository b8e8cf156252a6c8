"""The fastest step is measured once, changes nothing that training depends on, and is kept."""

import math
from dataclasses import replace

import pytest
import torch

from shared_components.core import fastest_step, training
from shared_components.core.fastest_step import Choice, FastestStep, fastest
from shared_components.core.training import TrainingSteps
from tests.core.test_recorded_steps import Run
from tests.cuda_graphs import cuda_graphs, eager_by_context  # noqa: F401

PLAIN = Choice(recorded=False)


@pytest.fixture(autouse=True)
def settings_of_torch(monkeypatch):
    """Restore them after each test."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(fastest_step.machine, "fast_bf16", lambda: True)
    yield
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")


def times_of(**shares):
    """Return a function: 100 ms times the share of each property of a candidate."""

    def milliseconds(choice):
        factors = [share for name, share in shares.items() if getattr(choice, name, False) or choice.precision == name]
        return 100.0 * math.prod(factors)

    return milliseconds


def test_each_property_is_kept_if_it_is_faster_by_three_percent():
    choice, times = fastest(PLAIN, times_of(benchmark=0.98, channels_last=0.9), auto=False)
    assert choice == Choice(recorded=False, channels_last=True)
    assert times == {"float32": 100.0, "float32 benchmark": 98.0, "float32 channels_last": 90.0}
    choice, times = fastest(Choice(), times_of(recorded=0.2, benchmark=0.5), auto=False)
    assert choice == Choice(benchmark=True) and times["float32 benchmark"] == 50.0
    choice, _ = fastest(Choice(), times_of(recorded=1.2, channels_last=2.0), auto=False)
    assert choice == PLAIN


def test_only_a_free_precision_is_changed():
    shares = times_of(tf32=0.5, bf16=0.4)
    assert fastest(PLAIN, shares, auto=False)[0].precision == "float32"
    assert fastest(PLAIN, shares, auto=True)[0].precision == "bf16"
    assert fastest(PLAIN, times_of(tf32=0.5), auto=True)[0].precision == "tf32"
    slow = Choice(recorded=False, precision="bf16")
    assert fastest(slow, times_of(bf16=2.0), auto=True)[0].precision == "float32"
    assert fastest(slow, times_of(bf16=2.0), auto=False)[0].precision == "bf16"


def test_a_candidate_without_enough_memory_is_left_out():
    choice, times = fastest(PLAIN, lambda choice: math.inf if choice.benchmark else 100.0, auto=False)
    assert choice == PLAIN and times == {"float32": 100.0, "float32 channels_last": 100.0}


def measured(monkeypatch, run, seconds):
    """Measure on the CPU with a clock that advances by the given seconds between two readings."""
    monkeypatch.setattr(training, "why_eager", eager_by_context)
    steps = TrainingSteps(run.network, run.optimizer, run.method, run.context, run.partition)
    ticks, now = iter(seconds), [0.0, False]

    def clock():
        now[0] += next(ticks) if now[1] else 0.0
        now[1] = not now[1]
        return now[0]

    speed = FastestStep(clock=clock)
    speed.choice = speed.measure(steps, run.batch(0), auto=False)
    return speed, steps


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_measurement_leaves_weights_optimizer_and_random_numbers_alone(monkeypatch, cuda_graphs, optimizer):  # noqa: F811
    run = Run(monkeypatch, optimizer=optimizer, accumulate=2)
    run.train([run.batch(n) for n in range(2)])
    run.context.memory["count"] = torch.zeros(())
    objective = run.method.local.objective

    def counting(network, batch, context):
        context.memory["count"] += 1
        return objective(network, batch, context)

    run.method = replace(run.method, local=replace(run.method.local, objective=counting))
    before, random = run.weights(), (torch.get_rng_state(), run.context.generator.get_state())
    speed, _ = measured(monkeypatch, run, [0.5, 0.25, 0.125, 0.5])
    after = run.weights()
    assert run.context.memory["count"] == 0
    assert before.keys() == after.keys() and all(torch.equal(value, after[name]) for name, value in before.items())
    assert torch.equal(random[0], torch.get_rng_state()) and torch.equal(random[1], run.context.generator.get_state())
    assert (run.context.eager, run.context.precision, run.context.iteration) == ("", "float32", 1)
    assert speed.choice == Choice(benchmark=True, channels_last=True)
    assert speed.milliseconds == {
        "float32 recorded": 100.0, "float32 recorded benchmark": 50.0,
        "float32 recorded benchmark channels_last": 25.0, "float32 benchmark channels_last": 100.0,
    }  # fmt: skip


def test_a_choice_is_applied_to_the_next_steps_and_survives_a_restart_on_the_same_machine(monkeypatch, cuda_graphs):  # noqa: F811
    run = Run(monkeypatch)
    speed, steps = measured(monkeypatch, run, [0.5, 0.6, 0.3, 0.2])
    assert speed.choice == Choice(recorded=False, channels_last=True)
    applied = speed.choice.apply(steps)
    assert applied.why_eager == "eager steps are faster" and not torch.backends.cudnn.benchmark
    kernels = [p for p in run.network.parameters() if p.dim() == 4 and min(p.shape) > 1]
    assert kernels and all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)
    applied.run([run.batch(n) for n in range(2)])
    states = [s["exp_avg"] for p, s in run.optimizer.state.items() if p.dim() == 4 and min(p.shape) > 1]
    assert states and all(value.is_contiguous(memory_format=torch.channels_last) for value in states)
    again = FastestStep.from_json(speed.to_json())
    assert (again.choice, again.milliseconds) == (speed.choice, speed.milliseconds)
    assert FastestStep.from_json({**speed.to_json(), "where": "another GPU"}).choice is None
    assert FastestStep.from_json({}).choice is None and FastestStep().to_json() == {}


def test_weights_and_states_in_channels_last_train_to_the_same_weights(monkeypatch):
    ends = []
    for choice in (PLAIN, Choice(recorded=False, channels_last=True)):
        run = Run(monkeypatch, optimizer="sgd")
        run.train([run.batch(0)])
        steps = TrainingSteps(run.network, run.optimizer, run.method, run.context, run.partition)
        torch.manual_seed(2)
        choice.apply(steps).run([run.batch(n) for n in (1, 2)])
        ends.append(run.weights())
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-5)


def test_a_short_run_measures_nothing():
    speed = FastestStep()
    assert speed.for_run(1_000) is speed and speed.for_run(999) is None


def test_on_a_cpu_nothing_is_measured(monkeypatch):
    run, speed = Run(monkeypatch), FastestStep()
    steps = TrainingSteps(run.network, run.optimizer, run.method, run.context, run.partition)
    assert speed.prepare(steps, [run.batch(0)], auto=True) is steps and speed.to_json() == {}
