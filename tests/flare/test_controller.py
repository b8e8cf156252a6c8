"""The controller without FLARE's network: whole runs, every way in which one can end early, which answers count."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import pytest
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from safetensors.torch import load_file

from shared_components.common.atomic import NotWritten
from shared_components.federation.messages import Message
from shared_components.federation.protocol import Answers
from shared_components.federation.server import runner as server_side
from shared_components.federation.server import training
from shared_components.federation.server.client_sampling import sample_clients
from shared_components.federation.setup.site_setup import set_up_site
from shared_components.flare import processes, wire
from shared_components.flare.exchange import Exchange, read_reply
from shared_components.flare.timeouts import Timeouts
from tests.federation.conftest import fine_tune, make_job, play, rewritten, same  # noqa: F401 (a fixture)
from tests.flare.conftest import SITES, ByHand


def run_folder(workspace, job="test-fedavg"):
    return workspace.with_name("ws-state") / job / "latest"


def aggregations(controller):
    return [record for record in controller.server.records if record["kind"] == "aggregation"]


def but(asked, where, instead):
    """Return an answer of sites that are honest, but that one does something else in a task."""

    def answer(controller, site, task):
        there = task.name == asked and site == where
        return instead(controller, site, task) if there else controller.ask(site, task)

    return answer


def fails(*_):
    return make_reply(ReturnCode.EXECUTION_EXCEPTION)


@pytest.mark.pictures
def test_a_run_leaves_models_records_and_a_page(by_hand, workspace, messages):
    controller = by_hand("pfedsis").start()
    assert controller.panics == []
    folder = run_folder(workspace, "test-pfedsis")
    assert all((folder / f"site-{i}" / "model.safetensors").is_file() for i in (1, 2, 3))
    models, page = workspace / "models", workspace / "report" / "index.html"
    assert page.is_file()
    assert messages == [f"surgfl: test-pfedsis finished 1 round; models {models}, report {page}"]


def test_every_task_has_a_timeout_and_one_site_and_no_message_outlives_its_round(by_hand):
    """FLARE's tasks are reference cycles with their messages, which reference counts do not free."""

    def answer(controller, site, task):
        task.client_tasks.append(ClientTask(Client(site, ""), task))
        return controller.ask(site, task)

    controller = by_hand(answer=answer, longest_wait_seconds=7.5).start()
    assert controller.panics == []
    assert [task.name for task in controller.sent] == ["enrol"] * 3 + ["round"] * 3 + ["finish"] * 3
    assert all(7.5 < task.timeout < 30 for task in controller.sent)
    assert all(not task.client_tasks and task.data == Shareable() for task in controller.sent)
    cells = [cell.cell_contents for task in controller.sent for cell in task.result_received_cb.__closure__]
    exchanges = [cell for cell in cells if isinstance(cell, Exchange)]
    assert len(exchanges) == 9 and not any(exchange.replies for exchange in exchanges)


@pytest.mark.slow
def test_resume_goes_on_with_the_newest_run(by_hand, workspace, monkeypatch):
    straight = by_hand(rounds=2).start()

    def dies_in_round_1(controller, site, task):
        return fails() if controller.server.state.round == 1 else controller.ask(site, task)

    controller = by_hand(rounds=2, answer=but("round", "site-2", dies_in_round_1)).start()
    assert "site-2" in controller.panics[0]
    monkeypatch.setenv("SURGFL_RESUME", "1")
    resumed = by_hand(rounds=2).start()
    assert resumed.panics == [] and len(resumed.sent) == 9  # enrol, round 1, finish
    assert resumed.server.folder == controller.server.folder != straight.server.folder
    files = (run.server.folder / "server/round-00001.safetensors" for run in (straight, resumed))
    assert same(*map(load_file, files))


def test_a_full_disk_ends_the_run_with_one_sentence(by_hand, monkeypatch, messages, caplog):
    """The reason cannot be saved in run.json, and must still be reported."""
    full = Mock(side_effect=NotWritten("run.json: could not be written (No space left on device)"))
    monkeypatch.setattr(server_side.ServerRunner, "_save", full)
    monkeypatch.setattr(server_side.ServerRunner, "note_failure", full)
    controller = by_hand().start()
    (panic,) = controller.panics
    assert panic == "run.json: could not be written (No space left on device)"
    assert "Traceback" not in caplog.text
    assert messages == [f"surgfl: job test-fedavg FAILED: {panic}"]
    assert "the reason could not be saved in the run's folder: run.json: could not be written" in caplog.text


def test_a_resume_without_all_sites_says_which_are_missing(by_hand, monkeypatch):
    by_hand(rounds=1).start()
    monkeypatch.setenv("SURGFL_RESUME", "1")
    controller = by_hand(rounds=2).start(sites=("site-1", "site-3", "site-4"))
    assert controller.sent == [] and "was begun with site-2, not here now" in controller.panics[0]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"rouns": 3}, "unknown key 'rouns'"),
        ({"rounds": 0}, "rounds is 0"),
        ({"arguments": {"sensitivty_images": 2}}, "sensitivty_images"),
        ({"training": {"hight": 32}}, "unknown key 'hight'"),
        ({"bundle": "nonsense"}, "bundle 'nonsense' does not exist"),
        ({"method": "nonsense"}, "method 'nonsense' does not exist"),
        ({"network": {"apearance_head": True}}, "network: unknown argument 'apearance_head'; did you mean"),
        ({"network": {"drop_path": 1.5}}, "drop_path is 1.5; give a probability"),
        ({"network": {"drop_path": [0.1] * 1001}}, "network has 1001 values; write at most 1000"),
        ({"bundle": "fedst", "network": {"indicator": 10**9}}, "numbers, and a server builds at most 2147483648"),
    ],
)
def test_wrong_settings_end_the_job_before_any_site_is_asked(workspace, messages, change, words):
    controller = ByHand(workspace, **{**make_job("pfedsis").to_json(), **change}).start()
    assert controller.sent == [] and not workspace.with_name("ws-state").exists()
    assert words in messages[0] and messages[0].startswith("surgfl: job test-pfedsis FAILED: config_fed_server.json: ")
    assert controller.panics == [messages[0].partition("FAILED: ")[2]]


def test_refusals_of_all_sites_are_reported_nothing_is_trained_and_an_earlier_run_is_kept(by_hand, messages):
    def answer(controller, site, task):
        reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply.set_header(wire.ERROR, f"site {site}: /data/{site}/site.yaml: unknown key 'datset'")
        return controller.ask(site, task) if site == "site-2" else reply

    earlier = by_hand().start().server.folder
    before = {path: path.read_bytes() for path in earlier.rglob("*") if path.is_file()}
    refused = by_hand(answer=answer).start()
    assert {path: path.read_bytes() for path in earlier.rglob("*") if path.is_file()} == before
    assert messages[-1].endswith(
        "site-1: /data/site-1/site.yaml: unknown key 'datset'; "
        "site-3: /data/site-3/site.yaml: unknown key 'datset'; no round was started"
    )
    assert refused.server.folder != earlier and not list(refused.server.folder.rglob("round-*.safetensors"))


def test_an_aborted_job_names_the_sites_without_an_answer_and_their_last_error(by_hand, workspace, messages):
    signal = Signal()
    log = workspace / "site-3" / "error_log.txt"
    log.parent.mkdir(parents=True)
    log.write_text("Traceback\nConfigError: no such class\n\n")

    controller = by_hand(answer=but("enrol", "site-3", lambda *_: signal.trigger(True))).start(signal)
    reason = f"FLARE ended task 'enrol': site-3: no answer; {log} ends with: ConfigError: no such class"
    assert controller.panics == [reason] and messages == [f"surgfl: job test-fedavg FAILED: {reason}"]


def test_a_dead_process_is_noticed_long_before_the_longest_wait(by_hand, workspace, messages):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    announced = but("round", "site-2", lambda *_: processes.announce(run_folder(workspace) / "site-2", gone.pid))
    controller = by_hand(answer=announced, longest_wait_seconds=600).start()
    assert "site-2: its process died" in controller.panics[0]
    assert messages[0].startswith("surgfl: job test-fedavg FAILED: round 1 has 2 valid updates and needs 3")
    assert "error" in json.loads((run_folder(workspace) / "run.json").read_text())


def test_a_round_with_enough_sites_survives_an_absent_one(by_hand, caplog):
    held = []

    def answer(controller, site, task):
        if task.name == "round" and site == "site-3":
            held.append((site, task, controller.ask(site, task)))
            return None
        if task.name == "finish" and held:
            controller.receive(*held.pop())  # the late answer arrives during the next task
        return controller.ask(site, task)

    controller = by_hand(answer=answer, min_sites=2, grace_seconds=0.2)
    with caplog.at_level(logging.WARNING):
        controller.start()
    assert controller.panics == []
    assert "late answer of site-3 to task round is not used" in caplog.text
    assert [r["site"] for r in aggregations(controller)[0]["rejected"]] == ["site-3"]


def test_an_update_that_is_none_does_not_begin_the_grace_time(by_hand):
    """Of three sites two are enough: one sends nothing, and the third takes longer than the grace time."""

    def answer(controller, site, task):
        reply = controller.ask(site, task)
        if task.name == "round" and site == "site-3":
            threading.Timer(0.5, controller.receive, (site, task, reply)).start()
            return None
        if task.name == "round" and site == "site-1":
            return wire.to_shareable(Message(read_reply(reply, "round").header))
        return reply

    controller = by_hand(answer=answer, min_sites=2, grace_seconds=0.05).start()
    assert controller.panics == []
    assert [r["site"] for r in aggregations(controller)[0]["rejected"]] == ["site-1"]


def test_a_second_answer_is_not_used(by_hand, caplog):
    def twice(controller, site, task):
        controller.receive(site, task, controller.ask(site, task))
        return controller.ask(site, task)

    controller = by_hand(answer=but("round", "site-1", twice))
    with caplog.at_level(logging.WARNING):
        controller.start()
    assert controller.panics == [] and "a second or late answer of site-1 to task round" in caplog.text
    assert len([r for r in controller.server.records if r["kind"] == "site" and r["round"] == 0]) == 3


def test_a_job_whose_sites_cannot_finish_fails(by_hand, messages):
    controller = by_hand(answer=but("finish", "site-1", fails)).start()
    assert "all rounds are done, but not all sites have finished: site-1: FLARE reports" in messages[0]
    assert len(controller.panics) == 1


def test_a_living_or_unannounced_process_is_not_dead(tmp_path):
    assert not processes.died(tmp_path)
    processes.announce(tmp_path, os.getpid())
    assert not processes.died(tmp_path)
    for _ in range(2):
        processes.forget(tmp_path)
    assert not (tmp_path / processes.FILE).exists()


def test_a_site_that_hangs_is_ended_with_the_job(by_hand, workspace):
    """A simulator waits for its workers, so that a stopped one would keep it for ever."""
    hung = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    announced = but("round", "site-2", lambda *_: processes.announce(run_folder(workspace) / "site-2", hung.pid))
    controller = by_hand(answer=announced, longest_wait_seconds=3).start()
    assert "site-2: it did not answer within 3 s" in controller.panics[0]
    assert hung.wait(10) < 0
    assert not processes.died(run_folder(workspace) / "site-1")  # it has answered and goes on


@pytest.mark.parametrize("way", ["sys.exit(3)", "os._exit(3)"])
def test_last_words_are_last_however_the_process_ends(way):
    code = (
        "import os, sys; from shared_components.flare.patches import final_message; final_message.say('first');"
        f"final_message.say('surgfl: FAILED: why'); print('chatter', file=sys.stderr, flush=True); {way}"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 3 and ended.stderr == "chatter\nsurgfl: FAILED: why\n"


# ---- a fraction of the sites


def test_a_round_gives_only_the_drawn_sites_a_task_and_waits_for_nobody_else(by_hand):
    controller = by_hand(rounds=4, client_fraction=0.5, grace_seconds=600, longest_wait_seconds=1200)
    began = time.monotonic()
    controller.start()
    assert controller.panics == [] and time.monotonic() - began < 300  # not even a grace time
    given = [site for task, site in controller.given if task == "round"]
    drawn = [r["drawn"] for r in aggregations(controller)]
    assert given == [site for sites in drawn for site in sites] and [len(sites) for sites in drawn] == [2] * 4
    assert set(given) == set(SITES) and len(set(map(tuple, drawn))) > 1
    for task in ("enrol", "finish"):
        assert [site for name, site in controller.given if name == task] == list(SITES)


def test_a_drawn_site_that_does_not_answer_is_missed_and_one_that_was_not_drawn_is_not(by_hand):
    """Two of three are drawn, one is enough: the round ends with the grace time of the absent site."""

    def answer(controller, site, task):
        drawn = sample_clients(SITES, 0, fraction=controller.server.job.client_fraction, seed=2022)
        return None if task.name == "round" and site == drawn[0] else controller.ask(site, task)

    controller = by_hand(client_fraction=0.5, min_sites=1, grace_seconds=0.2, answer=answer).start()
    assert controller.panics == []
    record = aggregations(controller)[0]
    assert [r["site"] for r in record["rejected"]] == record["drawn"][:1]


# ---- a server that trains


@pytest.fixture
def trains_at_the_server(play):  # noqa: F811
    """Let FedAvg train at the server after each round."""
    play(server_update=fine_tune)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["named", "local"])
def test_a_server_that_trains_finds_its_own_site_yaml(
    by_hand, workspace, scenes, trains_at_the_server, monkeypatch, tmp_path, where
):
    """In the folder that SURGFL_SITE_CONFIG names, or in the startup kit's `local`."""
    data = tmp_path / "data"
    for party, path in zip((*SITES, "server"), (*scenes, scenes[0]), strict=True):
        server = rewritten(path, data / party if where == "named" else workspace / party / "local")
    if where == "named":
        monkeypatch.setenv("SURGFL_SITE_CONFIG", str(data))
    else:
        monkeypatch.delenv("SURGFL_SITE_CONFIG")
    sites = []

    def noting(job, site, **options):
        sites.append(site)
        return set_up_site(job, site, **options)

    monkeypatch.setattr(training, "set_up_site", noting)
    controller = by_hand().start()
    assert controller.panics == []
    assert {(site.name, site.path) for site in sites} == {("server", server)}
    record = controller.server.last_record
    assert record["loss"]["segmentation"] > 0 and record["seconds_training"] > 0


def test_a_server_that_trains_without_data_says_so_before_any_site_is_asked(
    by_hand, workspace, scenes, trains_at_the_server, messages
):
    """The fixture's SURGFL_SITE_CONFIG has no server/site.yaml; it is not replaced by a rendered one."""
    controller = by_hand().start()
    assert controller.sent == [] and controller.panics == [
        f"site server: there is no description of its data at {scenes[0].parent.parent / 'server.yaml'}; write one "
        "(docs/how-to/your-data.md) or name it in the environment variable SURGFL_SITE_CONFIG"
    ]
    assert messages[0].startswith("surgfl: job test-fedavg FAILED: site server: ")


# ---- which answers count: the first of each site that was asked, in time


def exchange():
    return Exchange(["a", "b", "c"], Timeouts(started=100.0, needed=2, grace=5.0, longest=60.0))


def test_only_the_first_answer_of_a_site_with_a_task_counts_until_it_is_closed_and_replies_are_handed_over_once():
    open_one, first = exchange(), Message({"n": 1})
    assert open_one.reply("a", first) and not open_one.reply("a", Message({"n": 2}))
    assert not open_one.fail("a", "its task ended") and not open_one.reply("d", Message({}))
    assert (open_one.replies, open_one.failures, open_one.pending) == ({"a": first}, {}, ["b", "c"])
    assert open_one.hand_over() == {"a": first}
    assert open_one.replies == {} and open_one.pending == ["b", "c"]
    assert not open_one.reply("a", Message({})), "it has answered, whoever keeps the answer"
    open_one.close("it was too slow")
    assert not open_one.reply("b", Message({}))
    assert open_one.replies == {} and set(open_one.failures) == {"b", "c"} == set(open_one.late)


def test_the_grace_time_starts_with_the_last_needed_reply():
    waiting = exchange()
    waiting.reply("a", Message({}))
    waiting.useful = 1
    waiting.expire(130.0)
    waiting.reply("c", Message({}))
    waiting.expire(135.0)  # the controller has not read it yet
    waiting.useful = 2
    waiting.expire(140.0)
    waiting.expire(145.0)
    assert waiting.pending == ["b"]
    waiting.expire(145.1)
    assert waiting.pending == [] and "grace_seconds" in waiting.failures["b"]


def test_refusals_do_not_start_the_grace_time_and_nobody_is_waited_for_longer_than_the_longest_wait():
    waiting = exchange()
    waiting.fail("b", "site b: /x/site.yaml: unknown key 'datset'")
    waiting.fail("a", "its process died")
    for seconds in (110.0, 120.0, 160.0):
        waiting.expire(seconds)
        assert waiting.pending == ["c"]
    waiting.expire(160.1)
    assert waiting.pending == []
    assert Answers(waiting.replies, waiting.failures).reasons() == (
        "a: its process died; b: /x/site.yaml: unknown key 'datset'; "
        "c: it did not answer within 60 s (longest_wait_seconds)"
    )
