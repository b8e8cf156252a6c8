"""Runs on the disk: which one a resume goes on with, what they are called and take, what is removed and what never."""

import json
import os
import shutil
import subprocess
from datetime import UTC, datetime

import pytest

from shared_components.cli import main
from shared_components.federation.messages import FederationError
from shared_components.federation.runs import provenance, run_cleanup
from shared_components.federation.runs import run_folder as runs
from shared_components.federation.runs.run_folder import link_models, lock_run, open_run, point_latest_to
from tests.federation.conftest import make_job

FIRST, SECOND, THIRD = "20260101-100000", "20260102-100000", "20260103-100000-1"


class Clock(datetime):
    said = "20260101-120000"

    @classmethod
    def now(cls, tz=None):
        return datetime.strptime(cls.said, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Begin a run at a time, and let it end a round."""
    monkeypatch.setattr(runs, "datetime", Clock)

    def begin(when, *, ended=True):
        Clock.said = when
        folder = open_run(make_job("fedavg"), tmp_path, resume=False)
        (folder / "server").mkdir()
        runs.write_json(folder / "run.json", {"job": make_job("fedavg").to_json()})
        if ended:
            (folder / "server" / "round-00000.safetensors").write_bytes(b"a state")
        point_latest_to(folder)
        return folder

    return begin


@pytest.fixture
def resumed(tmp_path):
    """Return a function that opens the newest run."""
    return lambda: open_run(make_job("fedavg"), tmp_path, resume=True)


def test_a_clock_that_was_set_back_changes_nothing(begin, resumed):
    """The newer run has the greater name, too, so that listing and keeping the newest few are right."""
    older, newer = begin("20260601-120000"), begin("20260101-120000")
    assert resumed() == newer and newer.name == "20260601-120000-1"
    assert runs.order(newer.name) > runs.order(older.name)
    names = [begin("20260601-120000").name for _ in range(12)]
    assert names[0] == "20260601-120000-2" and names[-1] == "20260601-120000-13"
    assert sorted(names, key=runs.order) == names != sorted(names)


def test_the_newest_run_is_the_one_that_latest_names(begin, resumed, tmp_path):
    """A newest run that has ended no round leaves nothing to resume; a run that is gone is an error."""
    first, second = begin("20260101-120000"), begin("20260102-120000")
    assert resumed() == second
    point_latest_to(first)
    assert resumed() == first
    unended = begin("20260103-120000", ended=False)
    assert resumed() not in (first, second, unended)
    point_latest_to(second)
    second.rename(tmp_path / "elsewhere")
    with pytest.raises(FederationError, match="latest names 20260102-120000, which is gone"):
        resumed()


def test_without_latest_one_run_is_the_newest_and_of_several_nobody_knows(begin, resumed):
    """A copy may have lost the link."""
    only = begin("20260101-120000")
    (only.parent / "latest").unlink()
    assert resumed() == only
    begin("20260102-120000")
    (only.parent / "latest").unlink()
    with pytest.raises(FederationError, match="latest is no link to the newest run; make it one"):
        resumed()
    (only.parent / "latest").mkdir()
    with pytest.raises(FederationError, match="latest is no link"):
        resumed()


def make_run(state, job, when, *, rounds=2, done=2, finished=True, **more):
    """Write what a run of two sites leaves; every model has 1000 bytes."""
    folder = state / job / when
    for site in ("site-1", "site-2"):
        (folder / site).mkdir(parents=True)
        for name in ("model", "best", "round-00001"):
            (folder / site / f"{name}.safetensors").write_bytes(b"x" * 1000)
        (folder / site / "quarantine.json").write_text("[]")
    (folder / "server").mkdir()
    facts = {"job": {"name": job}, "method": "fedavg", "rounds": rounds, "sites": ["site-1", "site-2"], **more}
    (folder / "run.json").write_text(json.dumps(facts))
    records = [{"kind": "aggregation", "round": n} for n in range(done)] + [{"kind": "outsider"}] * finished
    (folder / "server" / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    point_latest_to(folder)
    return folder


@pytest.fixture
def state(tmp_path):
    """Three runs of two jobs, and things that are no runs."""
    state = tmp_path / "ws-state"
    make_run(state, "fedavg", FIRST)
    make_run(state, "fedavg", SECOND, done=1, finished=False, error="site-2 died")
    make_run(state, "pfedsis", THIRD, done=1, finished=False)
    (state / "fedavg" / "20260104-100000").mkdir()  # of a person
    (state / "fedavg" / "20260104-100000" / "thesis.txt").write_text("mine")
    (state / "scenes" / "sizes" / "site-1").mkdir(parents=True)
    return state


def names(kept):
    return [run.name for run in kept]


def test_every_place_where_people_look_leads_to_the_runs(state, tmp_path):
    all_three = [f"fedavg/{FIRST}", f"fedavg/{SECOND}", f"pfedsis/{THIRD}"]
    assert names(run_cleanup.find_runs(tmp_path / "ws")) == names(run_cleanup.find_runs(state)) == all_three
    assert names(run_cleanup.find_runs(state / "fedavg")) == all_three[:2]
    state.rename(tmp_path / "runs")
    assert names(run_cleanup.find_runs(tmp_path)) == all_three  # of a comparison
    (tmp_path / "runs").rename(tmp_path / "surgfl")
    assert names(run_cleanup.find_runs(tmp_path)) == all_three  # of a startup kit
    with pytest.raises(FederationError, match="there are no runs"):
        run_cleanup.find_runs(tmp_path / "nowhere")


NOISE, SUMS = {"privacy": {"clip": 1.0, "noise_multiplier": 1.0}}, {"secure_sums": {"threshold": 2}}


@pytest.mark.parametrize(
    "method, section, rounds, done",
    [("fedavg", {}, 1, 1), ("fedper", NOISE, 1, 1), ("fedavg", SUMS, 1, 1), ("fedavg", {}, 5, 2)],
)
def test_a_site_of_a_deployment_knows_its_run_and_how_far_it_came(
    federate, toy_bundle, tmp_path, method, section, rounds, done
):
    """Only the server writes run.json: a site reads its enrolment and its own states."""
    federation = federate(make_job(method, bundle="toy", rounds=rounds, **section)).run(until=done)
    if done == rounds:
        federation.finish()
    (run,) = run_cleanup.find_runs(tmp_path)
    (run.folder / "run.json").unlink()
    shutil.rmtree(run.folder / "server")
    (kept,) = run_cleanup.find_runs(tmp_path)
    status = "finished" if done == rounds else "unfinished"
    assert (kept.name, kept.status, kept.method, kept.done, kept.rounds) == (run.name, status, method, done, rounds)


def test_a_run_is_described_by_its_files_and_one_that_ends_meanwhile_by_its_end(state, monkeypatch):
    first, second, third = run_cleanup.find_runs(state)
    assert (first.method, first.done, first.rounds, first.sites) == ("fedavg", 2, 2, 2)
    assert [run.status for run in (first, second, third)] == ["finished", "failed", "unfinished"]
    assert [run.latest for run in (first, second, third)] == [False, True, True]
    assert first.when == "2026-01-01 10:00:00" and 6000 < first.size < 7000
    with lock_run(second.folder):
        assert run_cleanup.read_run(second.folder).status == "running"
    assert run_cleanup.read_run(second.folder).status == "failed"
    stopped = make_run(state, "fedavg", "20260107-100000", finished=False, done=1, stopped="by an administrator")
    assert run_cleanup.read_run(stopped).status == "stopped"

    def ends(folder):
        (folder / "site-1").mkdir(exist_ok=True)
        (folder / "site-1" / "final.json").touch()
        return False

    monkeypatch.setattr(run_cleanup, "is_locked", ends)
    assert run_cleanup.read_run(third.folder).status == "finished"


def test_a_removed_run_is_gone_and_latest_names_the_newest_that_is_left(state):
    first, second, _ = run_cleanup.find_runs(state)
    with lock_run(second.folder), pytest.raises(FederationError, match="another process works on this run"):
        run_cleanup.remove(second)
    assert run_cleanup.remove(second) == second.size
    assert names(run_cleanup.find_runs(state / "fedavg")) == [f"fedavg/{FIRST}"]
    assert os.readlink(state / "fedavg" / "latest") == FIRST
    assert run_cleanup.remove(first, models_only=True) == 6000
    again = run_cleanup.read_run(first.folder)
    assert (again.done, again.status) == (2, "finished") and not list(first.folder.rglob("*.safetensors"))
    run_cleanup.remove(run_cleanup.find_runs(state / "fedavg")[0])
    assert not (state / "fedavg" / "latest").is_symlink()
    assert (state / "fedavg" / "20260104-100000" / "thesis.txt").read_text() == "mine"


def test_a_workspace_keeps_its_models_when_their_run_goes_and_they_do_not_count_as_freed(state, tmp_path):
    first = run_cleanup.find_runs(state)[0]
    left = link_models(first.folder, ["site-1", "site-2"], tmp_path / "ws" / "models")
    assert len(left) == 4 and left[0].samefile(first.folder / "site-1" / "model.safetensors")
    size = run_cleanup.read_run(first.folder).size
    assert run_cleanup.remove(first) == size - 4000
    assert all(path.stat().st_size == 1000 for path in left)


def test_frames_of_a_run_that_has_not_ended_go_with_its_models(state):
    (run,) = [run for run in run_cleanup.find_runs(state) if run.folder.name == SECOND]
    cached = run.folder / "site-1" / "frames" / "boot" / "0123"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"x" * 500)
    before = run_cleanup.read_run(run.folder).size
    assert run_cleanup.remove(run, models_only=True) == 6500
    assert run_cleanup.read_run(run.folder).size == before - 6500 and not cached.parents[1].exists()


def test_models_are_copied_where_the_disk_has_no_second_names(state, tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.hardlink_to", lambda self, to: (_ for _ in ()).throw(OSError("other disk")))
    (state / "fedavg" / FIRST / "server" / "model-depth.safetensors").write_bytes(b"y")
    left = link_models(state / "fedavg" / FIRST, ["site-1"], tmp_path / "models")
    assert [path.relative_to(tmp_path / "models").as_posix() for path in left] == [
        "site-1/model.safetensors", "site-1/best.safetensors", "server/model-depth.safetensors",
    ]  # fmt: skip
    assert left[0].read_bytes() == b"x" * 1000 and left[0].stat().st_nlink == 1


def test_what_is_no_run_is_not_removed_and_a_run_that_never_began_is_one(state):
    mine = state / "fedavg" / "20260104-100000"
    with pytest.raises(FederationError, match="is no run"):
        run_cleanup.remove(run_cleanup.read_run(mine))
    (state / "fedavg" / "20260105-100000").symlink_to(state / "fedavg" / FIRST)
    assert not any(run_cleanup.is_run(state / "fedavg" / name) for name in ("20260105-100000", "latest"))
    (mine / "run.json").write_text("[]")  # another's
    assert not run_cleanup.is_run(mine)
    empty = state / "fedavg" / "20260106-100000"
    (empty / "site-1").mkdir(parents=True)
    (empty / "site-1" / "process").write_text("12")
    assert run_cleanup.read_run(empty).status == "never began" and run_cleanup.is_run(empty)
    for cut_off in (".secure_sums.json.4711", ".round-00001.safetensors.4711", ".rounds.jsonl.4711"):
        (empty / "site-1" / cut_off).touch()
    assert run_cleanup.is_run(empty)


def test_the_newest_of_each_job_are_kept_and_a_name_of_no_run_or_of_several_is_refused(state):
    all_runs = run_cleanup.find_runs(state)
    assert names(run_cleanup.older_runs(all_runs, 1)) == [f"fedavg/{FIRST}"]
    assert names(run_cleanup.older_runs(all_runs, 0)) == names(all_runs) and run_cleanup.older_runs(all_runs, 2) == []
    for name in ("fedavg", "20250101-100000", "pfedsis/" + FIRST):
        with pytest.raises(FederationError, match="names no run"):
            run_cleanup.chosen_runs(all_runs, [name])
    make_run(state, "pfedsis", FIRST)
    with pytest.raises(FederationError, match="several runs"):
        run_cleanup.chosen_runs(run_cleanup.find_runs(state), [FIRST])
    path = state / "pfedsis" / FIRST
    assert names(run_cleanup.chosen_runs(run_cleanup.find_runs(state), [str(path)])) == [f"pfedsis/{FIRST}"]


def test_the_command_lists_and_removes_only_what_is_confirmed(state, capsys, monkeypatch):
    assert main(["runs", str(state)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("3 runs, 0 MB") and f"fedavg/{SECOND}" in text and "failed, latest" in text
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(["runs", str(state), "--keep", "1"]) == 2
    assert "add --yes" in capsys.readouterr().err and len(run_cleanup.find_runs(state)) == 3
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(["runs", str(state), "--remove", FIRST]) == 1 and len(run_cleanup.find_runs(state)) == 3
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert main(["runs", str(state), "--remove", FIRST]) == 0 and len(run_cleanup.find_runs(state)) == 2
    assert main(["runs", str(state), "--keep", "0", "--models", "--yes"]) == 0
    assert not list(state.rglob("*.safetensors")) and len(run_cleanup.find_runs(state)) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--keep", "-1"], "at least 0"), (["--yes"], "name what is removed"), (["--remove", "x"], "names no run")],
)
def test_the_command_refuses_in_one_sentence(state, capsys, options, words):
    assert main(["runs", str(state), *options]) == 2
    assert words in capsys.readouterr().err and len(run_cleanup.find_runs(state)) == 3
    with lock_run(state / "fedavg" / FIRST):
        assert main(["runs", str(state), "--remove", FIRST, SECOND, "--yes"]) == 2
    assert "is running" in capsys.readouterr().err and len(run_cleanup.find_runs(state)) == 3


def test_a_commit_is_of_the_sources_and_not_of_a_repository_around_them(tmp_path, monkeypatch):
    """An installation lies in a virtual environment, and that often in a person's own repository."""
    here = tmp_path / "environment"
    here.mkdir()
    shutil.copy(provenance.__file__, here / "provenance.py")
    monkeypatch.setattr(provenance, "__file__", str(here / "provenance.py"))
    known = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", *known, "commit", "-q", "--allow-empty", "-m", "theirs"], cwd=tmp_path, check=True)
    assert provenance.commit.__wrapped__() == ""
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", *known, "commit", "-q", "-m", "ours"], cwd=tmp_path, check=True)
    assert len(provenance.commit.__wrapped__()) == 10
