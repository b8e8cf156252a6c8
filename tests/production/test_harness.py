"""The trials that fit into CI, and their tools: byte search, footprints, held processes, a network, the table."""

import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import nvflare
import pytest
import torch

from evidence.production import at_start
from evidence.production import search as searching
from evidence.production.__main__ import Row, table
from evidence.production.deployment import OF_START, Party, until
from evidence.production.footprint import Footprint, Held, size, slope
from evidence.production.holds import AT_SERVER, AT_SITE, Place, go_on, held
from evidence.production.network import Network
from evidence.production.search import file_windows, patterns, search, windows
from evidence.production.trials import Trial, all_trials
from shared_components.flare.deployment.kits import SAFE_START


@pytest.fixture
def tensors():
    drawn = torch.Generator().manual_seed(1)
    return {name: torch.randn(40, 30, generator=drawn) for name in ("head", "other")}


def record(folder, *parts):
    """Write parts between random bytes, the first part at an odd position."""
    noise = np.random.default_rng(0)
    path = folder / "1.frames"
    path.write_bytes(b"".join(noise.bytes(1013) + part for part in parts) + noise.bytes(99))
    return [path]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float64, "text"])
def test_a_tensor_is_found_in_every_number_type_and_as_text_and_no_other_tensor(tmp_path, tensors, kind):
    head = tensors["head"]
    text = json.dumps(head.reshape(-1).tolist()).encode()
    files = record(tmp_path, text if kind == "text" else head.to(kind).view(torch.uint8).numpy().tobytes())
    assert search(patterns(tensors), files) == {"head": files[0]}


def test_a_tensor_is_found_by_a_slice_and_across_frames_with_headers(tmp_path, tensors):
    """No border of frames of 1,000 bytes hides all windows, and one window is enough."""
    data = tensors["head"].numpy().tobytes()
    frames = [b"other.weight" + data[at : at + 1000] for at in range(0, len(data), 1000)]
    assert set(search(patterns(tensors), record(tmp_path, *frames))) == {"head"}
    rows = tensors["head"][7:9]
    assert set(search(patterns({"rows": rows, **tensors}), record(tmp_path, rows.numpy().tobytes()))) >= {"rows"}


def test_a_tensor_across_two_slabs_is_found(tmp_path, tensors, monkeypatch):
    monkeypatch.setattr(searching, "SLAB", 1024)
    small = {"bias": tensors["head"][0, :4]}  # 16 bytes, one window
    path = tmp_path / "1.frames"
    for at in range(1000, 1048, 4):
        path.write_bytes(bytes(at) + small["bias"].numpy().tobytes() + bytes(3000))
        assert set(search(patterns(small), [path])) == {"bias"}, at


def test_a_file_is_found_by_its_bytes_and_constant_tensors_are_not_searched_for(tmp_path, tensors):
    picture = tmp_path / "frame.png"
    picture.write_bytes(np.random.default_rng(5).bytes(5000))
    assert search({"picture": file_windows(picture)}, record(tmp_path, picture.read_bytes()[100:]))
    assert not patterns({"zeros": torch.zeros(99), "ones": torch.ones(99), "count": torch.tensor(7)})
    assert windows(torch.arange(4.0) + 0.1) and not windows(torch.arange(3.0) + 0.1)
    empty = tmp_path / "1.frames"
    empty.write_bytes(b"")
    assert search(patterns(tensors), [empty]) == {} == search({}, record(tmp_path, b"x" * 99))


def test_a_slope_is_the_slope_of_least_squares_and_a_leaked_model_per_round_has_the_models_size():
    assert slope([(1, 5.0), (2, 7.0), (3, 9.0)]) == pytest.approx(2.0)
    assert slope([(10, 4.0), (20, 4.0)]) == pytest.approx(0.0)
    assert slope([(0, 0.0), (1, 3.0), (2, 0.0)]) == pytest.approx(0.0)  # one peak in the middle is no growth
    assert slope([(0, 0.0), (1, 0.0), (2, 3.0)]) == pytest.approx(1.5)  # (-1 * -1 + 0 * -1 + 1 * 2) / 2
    model = 27_165_080
    held = {round: Held(800_000_000 + round * model, 0, 20, 9) for round in range(1, 9)}
    footprint = Footprint({"server job": held}, {}, 1.0)
    assert footprint.slopes("rss", since=3) == {"server job": pytest.approx(model)}


def test_a_jobs_memory_is_its_own_report_after_each_round():
    held = {round: Held(9, 9, 20, 7) for round in (2, 3)}
    footprint = Footprint({"server job": held, "a job": held, "a parent": held}, {}, 1.0)
    reports = {"server job": [(1, 10), (2, 20), (3, 30)], "a job": [(0, 0), (4, 40), (5, 50), (6, 60), (0, 0)]}
    assert footprint.with_jobs(reports).held == {
        "server job": {2: Held(2, 20, 20, 7), 3: Held(3, 30, 20, 7)},
        "a job": {2: Held(5, 50, 20, 7), 3: Held(6, 60, 20, 7)}, "a parent": held,
    }  # fmt: skip


def test_the_minimum_of_some_rounds_is_per_process_and_number_and_a_folders_size_is_the_sum_of_its_files(tmp_path):
    threads = {1: 9, 2: 5, 3: 7, 4: 3}
    held = {round: Held(1, 1, count, 2 * count) for round, count in threads.items()}
    footprint = Footprint({"server job": held, "server parent": {r: Held(1, 1, 4, 4) for r in threads}}, {}, 1.0)
    assert footprint.least("threads", range(1, 4)) == {"server job": 5, "server parent": 4}
    assert footprint.least("files", [4]) == {"server job": 6, "server parent": 4}
    assert Held(1, 9, 3, 7).least(Held(2, 8, 4, 6)) == Held(1, 8, 3, 6)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"12345")
    (tmp_path / "c").write_bytes(b"123")
    assert size(tmp_path) == 8


def test_parties_have_the_arenas_that_a_kit_s_start_sh_gives_them():
    text = (Path(nvflare.__file__).with_name("lighter") / "templates" / "master_template.yml").read_text()
    set_by = {name: f"export {name}=${{{name}:-{value}}}" in text for name, value in OF_START.items()}
    assert set_by == {"MALLOC_ARENA_MAX": True, "PYTHONSAFEPATH": False}
    assert f"export PYTHONSAFEPATH={OF_START['PYTHONSAFEPATH']}" in SAFE_START


WORK = """\
class Work:
    def begin(self):
        print("begin", flush=True)

    def step(self):
        print("step", flush=True)

"""
MAIN = """\
from worked import Work

for _ in range(2):
    Work().begin()
    for _ in range(3):
        Work().step()
"""


@pytest.fixture
def run(tmp_path):
    """Return a party, a function that starts its work, and the file of its output; the processes end."""
    shutil.copy(at_start.__file__, tmp_path / "sitecustomize.py")
    (tmp_path / "worked.py").write_text(WORK)
    (tmp_path / "main.py").write_text(MAIN)
    kit = tmp_path / "hospital-a"
    kit.mkdir()
    party = Party(kit, "client", "org", {at_start.VARIABLE: str(kit / "hold.json")})
    begun = []

    def start(*words):
        variables = {**os.environ, **party.variables, "PYTHONPATH": str(tmp_path)}
        file = (tmp_path / "output").open("w")
        begun.append(subprocess.Popen([sys.executable, "-m", "main", *words], cwd=tmp_path, env=variables, stdout=file))
        return begun[-1]

    yield party, start, tmp_path / "output"
    for process in begun:
        process.kill()
        process.wait()


def test_a_process_stops_before_the_named_call_and_continues_on_request(run):
    party, start, output = run
    with held(party, Place("worked:Work.step", 2, "worked:Work.begin", 2)) as reached:
        process = start("worker_process")
        assert reached() == process.pid
        state = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        assert state == "T", "it is stopped"
        assert output.read_text().split() == ["begin", "step", "step", "step", "begin", "step"]
    go_on(process.pid)
    assert process.wait(20) == 0
    assert output.read_text().split().count("step") == 6


def test_a_held_process_can_be_killed(run):
    party, start, output = run
    with held(party, Place("worked:Work.begin")) as reached:
        process = start("runner_process")
        os.kill(reached(), signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL and output.read_text() == ""


def test_a_process_that_runs_no_job_goes_on(run):
    party, start, output = run
    with held(party, Place("worked:Work.begin")):
        process = start()
        until(lambda: process.poll() is not None, 20, "it has not ended")
    assert process.returncode == 0 and output.read_text().split().count("begin") == 2


@pytest.mark.parametrize("place", [*AT_SITE.values(), *AT_SERVER.values()], ids=str)
def test_every_place_is_a_function(place):
    for name in (place.where, place.after):
        assert not name or callable(pkgutil.resolve_name(name))


PORT = 5000
SERVE = f"""\
import socket
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind(("0.0.0.0", {PORT}))
print("ready", flush=True)
while True:
    own.sendto(*own.recvfrom(100))
"""
ASK = f"""\
import socket, sys
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.settimeout(0.05)
came = 0
for _ in range(int(sys.argv[2])):
    own.sendto(b"x", (sys.argv[1], {PORT}))
    try:
        came += len(own.recv(100))
    except TimeoutError:
        pass
print(came)
"""


def left():
    """Return this machine's namespaces and devices that belong to such networks."""
    words = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout.split()
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    return {word for word in words + spaces if word.startswith(("surgfl-", "sb", "sf", "sn"))}


@pytest.mark.skipif(os.geteuid() != 0 or not os.access("/dev/net/tun", os.W_OK), reason="needs root and /dev/net/tun")
def test_a_link_carries_loses_and_is_cut():
    with Network(["hospital-a", "hospital-b"]) as network:
        begin, link = network.prefixes, network.links["hospital-b"]

        def asked(name, count):
            command = [*begin[name], sys.executable, "-c", ASK, network.server, str(count)]
            return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

        command = [*begin[network.server], sys.executable, "-c", SERVE]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout.readline() == "ready\n"
                asked("hospital-a", 3), asked("hospital-b", 3)  # so that each knows the other's address
                assert asked("hospital-b", 10) > 8
                link.loss = 0.5  # of each way: a quarter comes back
                assert 2 < asked("hospital-b", 40) < 30
                link.cut = True
                assert asked("hospital-b", 10) == 0
                assert asked("hospital-a", 10) > 8, "the others are not cut"
                link.cut, link.loss = False, 0.0
                asked("hospital-b", 3)
                assert asked("hospital-b", 10) > 8
            finally:
                server.kill()
        own = network._token
        assert any(own in word for word in left())
    assert not any(own in word for word in left())


TRIALS = all_trials()
REAL = {"plain_run", "worker_killed", "leaking"}  # trials that need real processes


@pytest.mark.slow
@pytest.mark.parametrize("one", [one for one in TRIALS if one.quick], ids=lambda one: one.run.__name__)
def test_it_survives(one, deploy, deploy_quick, capsys):
    figure = one.run(deploy if one.run.__name__ in REAL else deploy_quick)
    assert any(letter.isdigit() for letter in figure), "every row has a figure"
    with capsys.disabled():
        print(f"\n{one.words}: {figure}")


def test_a_failed_trial_stands_out_in_the_table():
    good = Trial("room", "a | b", lambda deploy: "", True)
    rows = [Row(good, True, "3 of 3", 2.4), Row(good, False, "AssertionError: gone", 60.0)]
    survived, lost = table(rows).splitlines()[2:]
    assert survived == "| a \\| b | 3 of 3 | yes | 2 |" and lost == "| a \\| b | AssertionError: gone | **no** | 60 |"
