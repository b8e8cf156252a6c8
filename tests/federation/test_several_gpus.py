"""A site's training in several processes: as one process trains, and no process that stays behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import cv2
import numpy as np
import psutil
import pytest
import torch

from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.federation.messages import FederationError, SiteRefusal
from shared_components.federation.setup.limits import FILE, Limits, gpus_of, limits_of
from shared_components.federation.site.replica_processes import ReplicaTask, stop_replicas
from tests.federation.conftest import SITES, TINY, Federation, make_job, render, rewritten
from tests.federation.test_limits import check
from tests.narrow import narrow_everywhere

__all__ = ["narrow_everywhere"]  # also in the processes that a site starts

SAME = 5e-4  # of the norm of a change: float32 sums in another order, amplified by layer normalisations
# rows are divided 2 + 1; larger steps of this random network amplify roundings
STEPS = {**TINY, "batch_size": 3, "iterations": 2, "optimizer": "sgd", "learning_rate": 1e-5}
PLAIN = {"dropout": 0.0, "drop_path": 0.0}  # dropout masks depend on the number of processes
pytestmark = [
    pytest.mark.usefixtures("replicas_of_tests"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="these processes are for machines without a GPU"),
]


@pytest.fixture(scope="module")
def replicas_of_tests(narrow_everywhere):
    """End the replicas, which the tests share, since their start takes most of the time."""
    yield
    stop_replicas()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Return two sites without black patches, in which a layer normalisation amplifies roundings."""
    files = render(tmp_path_factory.mktemp("scenes"), sites=2)
    random = np.random.default_rng(0)
    for path in (path for file in files for path in file.parent.rglob("left_frames/*.png")):
        image = cv2.imread(str(path))
        cv2.imwrite(str(path), image // 2 + random.integers(0, 128, image.shape, np.uint8))
    return files


@pytest.fixture
def several(scenes, tmp_path):
    """Return a function that makes an enrolled federation whose sites have `gpus` processes."""

    def make(job, gpus, *, sites=1, without_gpus=True):
        folder = tmp_path / f"{gpus} processes"
        files = [rewritten(path, folder / name) for path, name in zip(scenes[:sites], SITES, strict=False)]
        for path in files:
            path.with_name(FILE).write_text(f"gpus: {gpus}\n")
        federation = Federation(job, folder / "runs", files, SITES[:sites])
        for runner in federation.sites.values():
            runner.without_gpus = without_gpus
        return federation.enrol()

    return make


def processes():
    """Return the ids of this process's replicas."""
    name = "shared_components.federation.site.replica"
    return [process.pid for process in psutil.Process().children() if name in process.cmdline()]


def all_end(ids, seconds=20.0):
    until = time.monotonic() + seconds
    while (alive := [one for one in ids if psutil.pid_exists(one)]) and time.monotonic() < until:
        time.sleep(0.1)
    return not alive


@contextmanager
def each_batch(federation, action):
    """Call a function before each batch of the first site; the first process calls it."""
    federation.sites[SITES[0]].stop = action
    yield


def distance(a, b):
    """Return the norm of the difference of named tensors."""
    return sum((a[name].double() - b[name].double()).square().sum() for name in b).sqrt()


def rounds(federation, count):
    """Return the replies of all sites in some rounds."""
    replies = []
    for _ in range(count):
        replies.append(federation.replies())
        federation.send(replies[-1])
    return replies


@pytest.mark.parametrize(
    "method, changes, count",
    [
        ("fedavg", {}, 2),  # a log of a mean over the batch; the second round begins with the first one's momentum
        ("fedavg", {"training": {**STEPS, "accumulate": 2}}, 1),
        ("fedprox", {"arguments": {"mu": 10.0}}, 1),  # a term that does not depend on the batch
        ("pfedsis", {"arguments": {"sensitivity_images": 2, "cross_style_share": 0.3}}, 1),  # two passes, a cut graph
        ("pfedsis", {"arguments": {"sensitivity_images": 2, "mode": "as_released"}}, 1),
        ("ditto", {}, 1),  # two networks
        ("centralised", {}, 1),  # one site reads all frames, the other does not train
    ],
)
def test_two_processes_train_as_one(several, method, changes, count):
    job = make_job(method, rounds=count, **{"training": STEPS, "network": PLAIN, **changes})
    sites = 2 if method in ("pfedsis", "centralised") else 1
    one, two = (several(job, gpus, sites=sites) for gpus in (1, 2))
    start = one.asked.messages[SITES[0]].pieces
    for alone, shared in zip(rounds(one, count), rounds(two, count), strict=True):
        for name, reply in alone.items():
            assert shared[name].header["loss"] == pytest.approx(reply.header["loss"], rel=1e-5)
            moved = distance(start, reply.pieces)
            assert distance(shared[name].pieces, reply.pieces) <= SAME * moved
            assert moved > 0 or (method, name) == ("centralised", "site-2")
            for group, tensors in reply.groups.items():
                size = distance(tensors, dict.fromkeys(tensors, torch.zeros(())))
                assert distance(shared[name].groups[group], tensors) < 5 * SAME * size
    assert len(processes()) == 1


def test_a_process_that_dies_ends_the_round_and_the_next_round_starts_another(several):
    federation = several(make_job("fedavg", training=STEPS, rounds=1), 2)

    def kill():
        for one in processes():
            os.kill(one, signal.SIGKILL)
        return False

    with (
        each_batch(federation, kill),
        pytest.raises(SiteRefusal, match="site site-1: the process of GPU 1 ended: exit"),
    ):
        federation.replies()
    assert not processes()
    with each_batch(federation, lambda: False):
        assert federation.replies()[SITES[0]].pieces
    assert len(processes()) == 1


def test_an_error_in_a_process_is_the_error_of_the_round(several, monkeypatch, tmp_path):
    write = ReplicaTask.write
    lost = {0: ("site-1", tmp_path / "nowhere" / "site.yaml")}
    monkeypatch.setattr(ReplicaTask, "write", lambda self, request: write(_with_sites(self, lost), request))
    federation = several(make_job("fedavg", training=STEPS, rounds=1), 2)
    with pytest.raises(SiteRefusal, match=r"the process of GPU 1 ended: SiteError: .*nowhere.*see .*rank-1.log"):
        federation.replies()
    assert not processes()


def _with_sites(task, sites):
    return ReplicaTask(task.name, task.folder, task.files, sites, task.start_weights)


def test_a_round_that_the_server_ends_leaves_no_process(several):
    federation = several(make_job("fedavg", training=STEPS, rounds=1), 2)
    with each_batch(federation, lambda: True), pytest.raises(SiteRefusal, match="the server ended the task"):
        federation.replies()
    assert not processes()


ALONE = """\
import sys, time
from pathlib import Path
from shared_components.federation.site.replica_processes import Team
team = Team(2, Path(sys.argv[1]), site="a")
print(*(process.pid for process in team._processes.values()), flush=True)
time.sleep(600)
"""


def test_no_process_outlives_a_parent_that_is_killed(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", ALONE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    ids = list(map(int, parent.stdout.readline().split()))
    listening = [c.laddr.ip for one in (parent.pid, *ids) for c in psutil.Process(one).net_connections("inet")]
    assert len(ids) == 1 and psutil.pid_exists(ids[0])
    parent.kill()
    parent.wait()
    assert all_end(ids)
    assert listening and set(listening) <= {"127.0.0.1", "::1"}  # no other machine can connect


def test_a_batch_with_fewer_samples_than_gpus_is_refused_before_the_run(scenes, tmp_path):
    path = rewritten(scenes[0], tmp_path / "a")
    path.with_name(FILE).write_text("gpus: 3\n")
    with pytest.raises(
        SiteError, match=r"training.batch_size is 2, fewer samples than the site's 3 GPUs; write 'gpus: 2'"
    ):
        check(make_job("fedavg"), load_site(path))
    check(make_job("fedavg", training={**TINY, "batch_size": 3}), load_site(path))


def test_batches_that_shrink_below_the_number_of_gpus_are_refused_at_enrolment(several):
    job = make_job("fedavg", training={**TINY, "batch_size": 16, "few_samples": "shrink"})
    with pytest.raises(FederationError, match="site-1 has 4 training samples, fewer than its 6 GPUs"):
        several(job, 6)


def test_more_gpus_than_the_machine_has_are_refused_and_all_are_those_of_the_machine(several, monkeypatch, tmp_path):
    with pytest.raises(FederationError, match=r"gpus is 2 in .*limits.yaml, and this process sees 0 \(CUDA_VISIBLE"):
        several(make_job("fedavg"), 2, without_gpus=False)
    assert gpus_of(Limits(gpus="all")) == 1
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert gpus_of(Limits(gpus="all")) == 4 and gpus_of(Limits()) == 1


@pytest.mark.parametrize("value", ["0", "most", "2.5"])
def test_gpus_is_a_number_or_all(scenes, tmp_path, value):
    path = rewritten(scenes[0], tmp_path / "a")
    path.with_name(FILE).write_text(f"gpus: {value}\n")
    with pytest.raises(SiteError, match="gpus"):
        limits_of(load_site(path))
