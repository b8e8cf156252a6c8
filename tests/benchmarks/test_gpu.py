"""`make bench-gpu`: the sentence where there is no GPU, and all its lines from a small run on a processor."""

import re

import pytest
import torch

from evidence.benchmarks import gpu
from evidence.benchmarks.pretraining_cost import counted
from shared_components.core import training
from tests.cuda_graphs import cuda_graphs, eager_by_context  # noqa: F401
from tests.narrow import make_narrow


def test_without_a_gpu_it_refuses_by_a_sentence(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main() == 1
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


def test_sites_steps_are_timed_recorded_and_eager(monkeypatch, cuda_graphs):  # noqa: F811
    make_narrow(monkeypatch)
    monkeypatch.setattr(gpu, "BATCH", 2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(training, "why_eager", eager_by_context)
    lines = list(gpu.site_steps(torch.device("cpu"), (32, 64)))
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")
    for name, line in zip(gpu.METHODS, lines, strict=True):
        assert line.startswith(f"{name}, step of 2: ") and "; fastest: " in line
        times = {recorded: re.findall(rf"\w+{recorded}\S* ([\d.]+) ms", line) for recorded in (" recorded", "")}
        assert all(float(ms) > 0 for found in times.values() for ms in found) and all(times.values())
    assert cuda_graphs.replays > 0


def test_multiply_adds_are_those_of_a_hand_count():
    linear = torch.nn.Linear(5, 7)
    assert counted(lambda: linear(torch.rand(2, 5))) == 2 * 5 * 7
