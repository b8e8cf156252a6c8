"""The controller of a deployment: lost sites, resumed runs, and the result in the job's folder."""

import json

import pytest
from nvflare.apis.signal import Signal

from shared_components.common.atomic import write_json
from shared_components.federation.runs.run_cleanup import read_run
from shared_components.flare import console
from shared_components.flare.executor import SiteExecutor
from shared_components.flare.patches.site_losses import LOST
from tests.flare.conftest import SITES, ByHand, Place, copied
from tests.flare.test_controller import aggregations, but, fails


def test_a_lost_site_is_rejected_by_name_and_the_round_continues_without_it(by_hand):
    died = "its process of the job died"
    answer = but("round", "site-2", lambda controller, *_: controller._lost.update({"site-2": died}))
    controller = by_hand(answer=answer, rounds=2, min_sites=2, longest_wait_seconds=60.0).start()
    assert not controller.panics
    lost = [{"site": "site-2", "reason": died}]
    assert [record["rejected"] for record in aggregations(controller)] == [lost, lost]
    assert controller.given.count(("round", "site-2")) == 1, "a lost site is asked again"


NOT_GIVEN = "it did not accept the job: no space left"


def give_out(controller, *, without):
    """Start a controller although FLARE could not give some sites the job; FLARE hides such sites."""
    controller._lost |= dict.fromkeys(without, NOT_GIVEN)
    return controller.start(sites=[site for site in SITES if site not in without])


@pytest.mark.parametrize("site", ["site-1", "site-2"], ids=["with the initial weights", "another"])
def test_a_site_that_did_not_accept_the_job_is_left_out_by_name(by_hand, site):
    controller = give_out(by_hand(min_sites=2), without=[site])
    assert not controller.panics and not any(asked == site for _, asked in controller.given)
    described = json.loads((controller.server.folder / "run.json").read_text())
    assert described["left_out"] == {site: f"{site}: {NOT_GIVEN}"}
    assert described["sites"] == [one for one in SITES if one != site]


def test_a_site_that_reports_late_that_it_cannot_begin_is_left_out(by_hand, workspace, monkeypatch):
    monkeypatch.setenv("SURGFL_STATE", str(workspace / "state"))
    place = Place(workspace, "server", simulator=False)
    folder = workspace / "server" / place.get_job_id()
    folder.mkdir(parents=True)
    answer = but("enrol", "site-2", lambda *_: write_json(folder / LOST, {"site-2": NOT_GIVEN}))
    controller = by_hand(answer=answer, min_sites=2, longest_wait_seconds=60.0)
    controller.start_controller(place)
    controller.control_flow(Signal(), place)
    assert not controller.panics
    assert controller.server.left_out == {"site-2": f"site-2: {NOT_GIVEN}"}


def test_a_job_that_needs_all_sites_ends_without_one_of_them_and_so_does_its_resume(by_hand, monkeypatch):
    assert give_out(by_hand(), without=["site-2"]).panics == [f"site-2: {NOT_GIVEN}; no round was started"]
    assert not by_hand(min_sites=2).start().panics
    monkeypatch.setenv("SURGFL_RESUME", "1")
    (panic,) = give_out(by_hand(rounds=2, min_sites=2), without=["site-2"]).panics
    assert f"was begun with site-2, not here now; site-2: {NOT_GIVEN}; start all of its sites" in panic


@pytest.mark.pictures
def test_in_production_an_end_by_flare_is_a_stop_and_blames_no_working_site(
    by_hand, workspace, monkeypatch, messages, caplog
):
    monkeypatch.setenv("SURGFL_STATE", str(workspace / "state"))
    signal = Signal()
    controller = by_hand(answer=but("round", "site-3", lambda *_: signal.trigger(True)))
    with caplog.at_level("INFO", console.__name__):
        controller.control_flow(signal, Place(workspace, "server", simulator=False))
    (reason,) = controller.panics
    assert reason == (
        "FLARE ended the job in round 1/1: an administrator stopped it, or the server ends; no site had failed; "
        "still at work: site-3"
    )
    assert messages == [f"surgfl: job test-fedavg STOPPED: {reason}"]
    assert f"STOPPED: {reason}" in caplog.messages and "FAILED" not in caplog.text
    run = controller.server.folder
    described = json.loads((run / "run.json").read_text())
    assert described["stopped"] == reason and "error" not in described
    assert read_run(run).status == "stopped" and "This run was stopped after" in (run / "report/index.html").read_text()


class Hospital(ByHand):
    """A controller and executors of a deployment, not of a simulator."""

    def ask(self, site, task):
        place = Place(self.workspace, site, simulator=False)
        return copied(SiteExecutor().execute(task.name, copied(task.data), place, Signal()))

    def start(self, resume=False):
        self.resume = resume
        self.control_flow(Signal(), Place(self.workspace, "server", simulator=False))
        return self


@pytest.fixture
def hospital(workspace, messages, job_on_toy):
    """Return a function that makes a controller of a deployment, whose parties each have a startup kit."""

    def make(**changes):
        (workspace / "server" / "0f1e-a-real-job").mkdir(parents=True, exist_ok=True)
        answer = changes.pop("answer", Hospital.ask)
        return Hospital(workspace, answer, **job_on_toy("fedavg", **{"rounds": 1, **changes}).to_json())

    return make


@pytest.mark.slow
def test_in_production_the_submission_chooses_the_resumed_run_and_the_environment_does_not(hospital, monkeypatch):
    monkeypatch.setenv("SURGFL_RESUME", "1")
    first = hospital().start()
    assert not first.panics
    anew = hospital(rounds=2).start()
    assert not anew.panics and anew.server.folder != first.server.folder
    for which in ("latest", anew.server.folder.name, "0f1e-a-real-job"):
        again = hospital(rounds=anew.server.state.round + 1).start(which)
        assert not again.panics
        if which != "0f1e-a-real-job":
            assert again.server.folder == anew.server.folder
        anew = again


@pytest.mark.parametrize("resume", ["latest", "20200101-000000", "nobody", True, 1, "", None, ["latest"]])
def test_no_new_run_begins_if_the_run_to_resume_is_missing_or_not_named(hospital, resume):
    controller = hospital().start(resume)
    (reason,) = controller.panics
    named = isinstance(resume, str) and resume
    words = f"has no run {resume!r} with a finished round" if named else f"resume is {resume!r}; write false, 'lat"
    assert words in reason and not list((controller.workspace / "server" / "surgfl").glob("*/[0-9]*"))


@pytest.mark.pictures
def test_the_result_has_only_the_report_and_the_model_for_unseen_sites_and_the_log_names_no_folder(hospital, caplog):
    with caplog.at_level("INFO", console.__name__):
        controller = hospital().start()
    assert not controller.panics
    lines = "".join(record.getMessage() for record in caplog.records if record.name == console.__name__)
    run = controller.server.folder
    assert f"run {run.name}" in lines and "finished" in lines and str(controller.workspace) not in lines
    result = controller.workspace / "server" / "0f1e-a-real-job" / "surgfl_result"
    files = {str(path.relative_to(result)) for path in result.rglob("*") if path.is_file()}
    assert files == {"report/index.html", "run.json", "rounds.jsonl", "models/server/model.safetensors"}
    assert [path.name for path in result.parent.iterdir()] == ["surgfl_result"]
    assert (result / "rounds.jsonl").read_bytes() == (run / "server" / "rounds.jsonl").read_bytes()


@pytest.mark.pictures
def test_a_failed_job_leaves_a_report_with_the_reason(hospital):
    controller = hospital(answer=but("round", "site-1", fails)).start()
    assert len(controller.panics) == 1
    result = controller.workspace / "server" / "0f1e-a-real-job" / "surgfl_result"
    assert json.loads((result / "run.json").read_text())["error"] == controller.panics[0]
    assert (result / "report" / "index.html").is_file()
