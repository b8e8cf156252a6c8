"""`surgfl watch`, from a run's first moment to its end."""

import json
import re

import pytest

from shared_components.cli import main
from shared_components.commands import job, watch
from shared_components.federation.runs import run_cleanup
from shared_components.reporting.records import load_run
from shared_components.reporting.watch_view import Look, frame, time_left
from tests.reporting.conftest import add_line, change_info


@pytest.fixture
def state(make_run, tmp_path):
    """Give the state of a workspace whose only run has done three of eight rounds, site-2 the first and the third."""
    folder = tmp_path / "ws-state" / "pfedsis" / "20260101-100000"
    folder.parent.mkdir(parents=True)
    make_run(done=3, overlays=False).rename(folder)
    lines = [json.loads(text) for text in (folder / "server" / "rounds.jsonl").read_text().splitlines()]
    kept = [x for x in lines if (x.get("site"), x["round"]) != ("site-2", 1) and x["round"] < 3]
    for line in kept:
        if line["kind"] == "aggregation":
            line |= {"seconds_wall": 60.0, "seconds_training": 0.0, "rejected": []}
            line["rejected"] += [{"site": "site-2", "reason": "its process died"}] * (line["round"] == 1)
    (folder / "server" / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    (folder / "site-1").mkdir()
    (folder / "site-1" / "step.json").write_text('{"what": "training", "done": 3, "total": 26, "note": ""}')
    return folder


def test_a_frame_has_rounds_sites_scores_and_the_time_left(state):
    run = load_run(state)
    text = frame(Look("pfedsis/x", "running", run, {"site-1": "training 3/26"}, 20.0))
    assert text.startswith("PFedSIS, pfedsis/x: running\n") and "3 of 8 rounds done, about 5 min left" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("site-")}
    assert rows["site-1"][1:7] == ["3", "of", "3", "rounds", "training", "3/26"]
    assert rows["site-2"][1:6] == ["2", "of", "3", "rounds", "–"]
    first, last = (run.rows["site-1"][r]["metrics"]["dice"]["mean"] for r in (0, 2))
    assert rows["site-1"][7:] == [f"{first:.3f}", f"{last:.3f}"]
    assert text.endswith("missing in round 2: site-2, its process died")
    assert "takes longer" not in time_left(run, 100.0) and "takes longer" in time_left(run, 200.0)


def test_it_follows_a_run_to_its_end_and_prints_one_frame_where_there_is_no_terminal(state, capsys, monkeypatch):
    workspace = str(state.parents[1])
    assert main(["watch", workspace]) == 1 and "unfinished" in capsys.readouterr().out
    looks = []

    def is_locked(folder):
        looks.append(folder)
        if len(looks) == 4:  # while it is watched
            add_line(folder, kind="outsider")
        return len(looks) < 4

    monkeypatch.setattr(run_cleanup, "is_locked", is_locked)
    monkeypatch.setattr(watch, "can_move", lambda out: True)
    monkeypatch.setattr(watch, "_EVERY", 0.0)
    assert main(["watch", workspace]) == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    assert "running" in shown or "finished" in shown
    assert shown.rstrip().endswith("site-2, its process died") and "finished" in shown


def test_before_the_first_record_and_after_a_failure_it_says_so(state, capsys, tmp_path):
    change_info(state, error="too few sites", left_out={"site-9": "another start"})
    assert main(["watch", str(state.parents[1])]) == 1
    out = capsys.readouterr().out
    assert "failed: too few sites" in out and "missing: site-9, left out at enrolment: another start" in out
    (state / "run.json").unlink()
    assert main(["watch", str(state.parents[1])]) == 1
    assert "site-1  training 3/26" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "nowhere")]) == 2
    assert "there are no runs" in capsys.readouterr().err


def test_a_stopped_run_is_said_to_be_stopped_with_the_exit_status_of_job_watch(state, capsys):
    change_info(state, stopped="an administrator stopped it")
    assert main(["watch", str(state.parents[1])]) == job.CODES["stopped"] == 3
    out = capsys.readouterr().out
    assert "stopped: an administrator stopped it" in out and "failed" not in out


def test_only_a_running_site_waits_for_its_first_round():
    ended = frame(Look("fedavg/x", "unfinished", None, {}, 1.0))
    assert ended.startswith("fedavg/x: unfinished") and "waiting" not in ended
    assert "waiting for its first round" in frame(Look("fedavg/x", "running", None, {}, 1.0))
