"""`make bench-gpu`: the sentence where there is no GPU, and all its lines from a small run on a processor."""

import re
import time
from types import SimpleNamespace

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from evidence.benchmarks import bench_gpu, gpu, gpu_steps
from evidence.benchmarks.pretraining_cost import counted


def test_without_a_gpu_it_refuses_by_a_sentence(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_gpu.main() == 1
    assert "needs an NVIDIA GPU" in capsys.readouterr().out


@pytest.mark.slow
def test_a_small_run_times_both_networks_in_both_precisions_and_its_masks_agree(monkeypatch):
    monkeypatch.setattr(gpu, "TURNS", 1)
    monkeypatch.setattr(gpu, "REPEATS", 1)
    lines = list(gpu.table(torch.device("cpu"), size=(64, 64), batch=2, product=64))
    found = "\n".join(lines)
    for what in ("step of 2", "prediction of 1"):
        for precision in gpu.PRECISIONS:
            for network in (gpu.OURS, gpu.PEER):
                (line,) = [one for one in lines if re.match(rf"{what}, {precision} +{re.escape(network)} +\d", one)]
                assert float(re.search(r"([\d.]+) ms", line)[1]) > 0
    assert found.count(f"{gpu.OURS} / {gpu.PEER} ") == 4
    agree = [float(share) for share in re.findall(r"masks agree on ([\d.]+)%", found)]
    assert agree[0] == pytest.approx(100, abs=0.1) and agree[1] > 98


@pytest.mark.slow
def test_steps_of_a_pre_training_are_timed_with_and_without_graphs(monkeypatch):
    for name, small in (("TURNS", 2), ("REPEATS", 1), ("BATCH", 2)):
        monkeypatch.setattr(gpu, name, small)
    (line,) = gpu.pretraining_steps(torch.device("cpu"), sizes=[(64, 64)])
    by_graphs, without, apart = map(
        float, re.search(r": ([\d.]+) ms .*, ([\d.]+) without; .* ([\d.]+) apart", line).groups()
    )
    assert by_graphs > 0 and without > 0 and apart == 0


@pytest.fixture
def steps_as_seconds(monkeypatch):
    """Let every optimizer step take a second on the clock of `gpu_steps`."""
    taken = []
    hook = register_optimizer_step_post_hook(lambda *_: taken.append(1))
    monkeypatch.setattr(gpu_steps, "time", SimpleNamespace(perf_counter=lambda: float(len(taken))))
    yield
    hook.remove()


@pytest.mark.slow
def test_steps_and_rounds_of_both_methods_fill_the_table(monkeypatch, tmp_path, steps_as_seconds):
    monkeypatch.setattr(gpu, "TURNS", 1)
    for name, small in (("LARGE", (64, 64)), ("FEW", 1), ("ROUND", 3), ("FRAMES", 4)):
        monkeypatch.setattr(gpu_steps, name, small)
    bench = gpu_steps.Bench(torch.device("cpu"), tmp_path, batch=2, product=64)
    cases = [gpu_steps.Case(method, (64, 64), "bf16", "eager") for method in ("fedavg", "pfedsis", "plain")]
    recorded = gpu_steps.Case("fedavg", (64, 64), "bf16", "recorded")
    chosen = [
        bench_gpu.Measurement("site", 0, lambda: bench.prepare(size=(64, 64), frames=4)),
        *(bench_gpu.Measurement(str(case), 0, lambda case=case: bench.lines(case)) for case in (*cases, recorded)),
    ]
    lines = list(bench_gpu.measured(chosen, time.perf_counter() + 600))
    shares = []
    for case in cases:
        (row,) = [line for line in lines if line.startswith(f"| {case} |")]
        name, step, share, *others = [cell.strip() for cell in row.strip("|").split("|")]
        assert (name, step) == (str(case), "1000.00")
        assert others == (["", "", ""] if case.method == "plain" else ["2", "0.0%", "0.00 GB"])
        shares.append(float(share.rstrip("%")))
    assert shares[1] > shares[0] == shares[2] > 0  # PFedSIS has more terms, the plain loop FedAvg's network
    assert bench.times[cases[0]] == gpu_steps.Times(step=1.0, steps=3.0, round=3.0, memory=0)
    assert lines[-1] == f"{recorded}: ValueError: its steps are not recorded: the device is cpu"
    goals = list(bench.goals())
    assert goals[0].endswith("1000.00 ms") and goals[1].endswith("1.00") and goals[2].endswith("100.0%")


def test_measurements_end_at_their_time_and_name_what_is_missing():
    def endless():
        yield "first line"
        while True:
            time.sleep(0.01)

    def failing():
        yield "before"
        raise KeyError("reason")

    chosen = [
        bench_gpu.Measurement("long", 3600, lambda: ["never"]),
        bench_gpu.Measurement("failing", 0, failing),
        bench_gpu.Measurement("endless", 0, endless),
        bench_gpu.Measurement("late", 0, lambda: ["never"]),
    ]
    lines = list(bench_gpu.measured(chosen, time.perf_counter() + 0.3))
    assert lines[:3] == ["before", "failing: KeyError: 'reason'", "first line"]
    assert lines[3:] == ["left out for lack of time: long; endless (cut off); late"]


def test_multiply_adds_are_those_of_a_hand_count():
    linear = torch.nn.Linear(5, 7)
    assert counted(lambda: linear(torch.rand(2, 5))) == 2 * 5 * 7
