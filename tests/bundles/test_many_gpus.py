"""Gradients of several processes: averaged once, before the optimizer uses them."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPT = """
import torch
from shared_components.bundle_engines import average_gradients, join, leave, on_first_rank

join()
rank = torch.distributed.get_rank()
parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in (2, (1, 1), 1)]
optimizer = average_gradients(torch.optim.SGD(parameters, lr=1.0))
parameters[0].grad = torch.tensor([1.0, 10.0]) * (rank + 1)
parameters[1].grad = torch.tensor([[4.0]]) * rank
optimizer.step()
assert [p.tolist() for p in parameters] == [[-1.5, -15.0], [[-2.0]], [0.0]], parameters
assert on_first_rank(["handler"]) == (["handler"] if rank == 0 else [])
leave()
"""


@pytest.mark.slow
def test_a_step_uses_the_mean_of_all_processes_gradients(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, str(tmp_path / "script.py")],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
