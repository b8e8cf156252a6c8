"""Workspaces that FLARE cannot use are refused, and two launches in one workspace detect each other."""

import shutil
import subprocess
import sys

import pytest

from shared_components.federation.messages import FederationError
from shared_components.flare.workspaces import is_held, lock_file, lock_workspace, refuse_no_sites, refuse_unusable
from tests.flare.simulator import Simulator, tiny_job
from tests.narrow import narrow_copy

HOLD = "import sys,time,pathlib\nfrom shared_components.flare.workspaces import lock_workspace\n"
HOLD += "with lock_workspace(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"


@pytest.mark.parametrize("name", ["a b", "a'b", 'a"b', "a\\b", "a #b", "a\tb", "a\nb"])
def test_paths_that_flare_would_split_are_refused_and_other_paths_are_not(tmp_path, name):
    with pytest.raises(FederationError, match="starts no site; give another folder with -w"):
        refuse_unusable(tmp_path / name)
    for other in ("ws", "Größe-1_2.3", "a=b,c:d@e%f+g"):
        refuse_unusable(tmp_path / other)


@pytest.mark.parametrize("options", [["-n", "0"], ["-n0"], ["-n=-3"], ["--n_clients", "0"], ["-w", "ws", "-n", "-1"]])
def test_a_simulator_without_sites_is_refused_and_other_commands_are_not(options):
    with pytest.raises(FederationError, match=r"-n is (0|-\d); a federation has at least one site"):
        refuse_no_sites(["nvflare", "simulator", "job", *options])
    for command in ("", "nvflare", "nvflare simulator job -n 3 -t 0", "nvflare simulator -c a,b", "pytest -n 0"):
        refuse_no_sites(command.split())


def test_another_process_with_the_workspace_is_detected_until_it_ends(tmp_path):
    workspace = tmp_path / "ws"
    workspace.mkdir()
    assert not is_held(workspace)
    other = subprocess.Popen([sys.executable, "-c", HOLD, workspace], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        assert is_held(workspace)
        with pytest.raises(FederationError, match=f"another launch works in {workspace}"):
            lock_workspace(workspace, patience=0.3).__enter__()
    finally:
        other.kill()
        other.wait()
    assert not is_held(workspace)
    with lock_workspace(workspace):
        assert lock_file(workspace).parent == tmp_path  # FLARE does not empty this folder


def test_a_workspace_that_another_launch_has_emptied_is_detected(tmp_path):
    workspace = tmp_path / "ws"
    workspace.mkdir()
    with lock_workspace(workspace) as mine:
        mine.refuse_if_emptied()
        (workspace / "server").mkdir()
        mine.refuse_if_emptied()
        workspace.rename(tmp_path / "away")  # keeps the number from being given out again
        with pytest.raises(FederationError, match=f"{workspace} was emptied while this job ran"):
            mine.refuse_if_emptied()
        workspace.mkdir()
        with pytest.raises(FederationError, match="give each launch its own workspace"):
            mine.refuse_if_emptied()
    shutil.rmtree(tmp_path / "away")


@pytest.mark.slow
def test_of_two_launches_in_one_workspace_the_first_ends_with_a_reason_and_the_second_runs(tmp_path, programs):
    quick = {"root": narrow_copy(tmp_path / "narrow"), "python": programs / "python"}
    long, short = (tiny_job(tmp_path / "long", "fedavg", rounds=90), tiny_job(tmp_path / "short", "fedavg", rounds=1))
    with Simulator(long, tmp_path / "ws", "-n", "1", **quick) as first:
        first.wait_for_words("round 1/90")
        own = {"log": tmp_path / "second.log", "SURGFL_STATE": str(tmp_path / "second")}
        with Simulator(short, tmp_path / "ws", "-n", "1", **quick, **own) as second:
            assert second.wait() == 0, second.output[-4000:]
        assert first.wait() != 0
    assert f"{tmp_path / 'ws'} was emptied while this job ran in it" in first.output
    assert "fedavg finished 1 round" in second.last_line
