"""`nvflare simulator -gpu`: each site's process sees its GPUs, and our code takes the first or all of them."""

import os
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.private.fed.app.simulator import simulator_worker
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner
from nvflare.private.fed.utils.fed_utils import split_gpus

from shared_components.common import machine
from shared_components.federation.setup.limits import Limits, gpus_of
from shared_components.federation.site import replica_processes
from shared_components.flare.executor import SiteExecutor

UNUSED = (
    "check_parent_alive", "dynamic_log_config", "fobs_initialize", "register_ext_decomposers",
    "init_security_content_service", "AuthorizationService", "AuditService",
)  # fmt: skip


class Begins(Exception):
    """The site's process would begin its tasks now."""


@pytest.mark.parametrize(
    "option, groups, last", [("0,1", ["0", "1"], "0"), ("[0,1],[2,3]", ["0,1", "2,3"], "0,1"), ("1", ["1"], "1")]
)
def test_flare_divides_sites_between_gpus_and_tells_each_process_before_its_tasks(
    option, groups, last, monkeypatch, tmp_path
):
    assert split_gpus(option) == groups
    sites = SimulatorRunner.split_clients(SimpleNamespace(), ["site-1", "site-2", "site-3"], groups)
    (index,) = [i for i, names in enumerate(sites) if "site-3" in names]
    for name in UNUSED:
        monkeypatch.setattr(simulator_worker, name, MagicMock())
    monkeypatch.setattr(simulator_worker, "_create_connection", MagicMock(side_effect=Begins))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    site = SimpleNamespace(
        workspace=str(tmp_path), client="site-3", logging_config="", decomposer_module="", parent_pid=os.getpid(),
        port="0", gpu=groups[index],
    )  # fmt: skip
    with pytest.raises(Begins):
        simulator_worker.main(site)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == last


def test_a_site_trains_on_the_first_gpu_that_its_process_sees_or_on_all(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert machine.device() == torch.device("cuda")  # without a number: the first that is visible
    assert gpus_of(Limits(gpus="all")) == 2


def test_importing_a_site_asks_for_no_gpu_so_that_a_later_variable_counts():
    code = (
        "import torch; torch._C._cuda_getDeviceCount = torch.cuda.init = lambda *_: 1 / 0; "
        "import shared_components.flare.executor, shared_components.federation.site.replica"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_processes_of_further_gpus_end_with_the_run(monkeypatch):
    ended = []
    monkeypatch.setattr(replica_processes, "stop_replicas", lambda: ended.append(True))
    executor = SiteExecutor.__new__(SiteExecutor)
    for event in (EventType.ABORT_TASK, EventType.END_RUN):
        executor.handle_event(event, FLContext())
    assert ended == [True]
