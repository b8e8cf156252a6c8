"""A site's report of its own end goes through FLARE's own code, and to the job instead of ending it."""

from types import SimpleNamespace

import pytest
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.defs import ERROR_MSG_PREFIX, CellMessageHeaderKeys
from nvflare.private.fed.server.admin import check_client_replies
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.job_runner import JobRunner
from nvflare.private.fed.server.message_send import ClientReply

from shared_components.flare.desk import Desk
from shared_components.flare.lost_sites import AGAIN, DIED, TOPIC, LostSites, started_again, take_report

from .conftest import Place

JOB = "0f1e"


class Server:
    """What of FLARE's server a report reaches: FLARE's own handler and runner, and notes instead of a network."""

    def __init__(self, *, running=True):
        self.sites = [Client(name, f"token of {name}") for name in ("hospital-a", "hospital-b")]
        self.told: list[tuple[str, str, dict]] = []
        self.failed: list[int] = []
        self.callbacks: dict[str, object] = {}
        self.client_manager = SimpleNamespace(
            clients={site.token: site for site in self.sites},
            is_from_authorized_client=lambda token: token in {site.token for site in self.sites},
        )
        self.job_runner = JobRunner("")
        self.job_runner._pending_client_outcomes[JOB] = {site.name for site in self.sites}
        self.job_runner.fail_run = lambda job, code, fl_ctx: self.failed.append(code)
        self.job_runner.stop_run = lambda job, fl_ctx: self.failed.append("stopped")
        participants = {site.token: site for site in self.sites}
        self.run_processes = {JOB: {RunProcessKey.PARTICIPANTS: participants}} if running else {}
        self.exception_run_processes: dict[str, object] = {}
        self.server = self.engine = self.cell = self
        self.logger = SimpleNamespace(warning=print, error=print, info=print)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def new_context(self):
        return self

    def get_engine(self):
        return self

    def get_clients(self):
        return self.sites

    def start_client_job(self, job, client_sites, fl_ctx):
        raise AssertionError("no job begins here")

    def register_request_cb(self, channel, topic, cb):
        self.callbacks[topic] = cb

    def process_job_failure(self, request):
        return FederatedServer.process_job_failure(self, request)

    def _resolve_missing_client_outcome(self, client, job, reason):
        FederatedServer._resolve_missing_client_outcome(self, client, job, reason)

    def _notify_dead_job(self, client, job, reason):
        self.told.append((job, reason, {"site": client.name}))

    def send_app_command(self, job, topic, data, timeout):
        self.told.append((job, topic, data))

    def pending(self):
        return self.job_runner._pending_client_outcomes[JOB]


def report(code, *, site="hospital-b", job=JOB):
    headers = {CellMessageHeaderKeys.TOKEN: f"token of {site}", MessageHeaderKey.ORIGIN: site}
    return Message(headers, {"job_id": job, "code": code, "reason": "because"})


CODES = (
    JobReturnCode.EXCEPTION,
    JobReturnCode.UNSAFE_COMPONENT,
    JobReturnCode.CONFIG_ERROR,
    JobReturnCode.INFRASTRUCTURE_ERROR,
    JobReturnCode.ABORTED,
)


@pytest.mark.parametrize("code", CODES)
def test_flare_itself_would_end_the_job_and_ours_tells_the_job_which_site_is_lost(code):
    server = Server()
    server.process_job_failure(report(code))
    assert len(server.failed) == 1

    server = Server()
    take_report(server, report(code))
    (job, topic, data), *more = server.told
    assert not server.failed and not more
    assert (job, topic, data["site"]) == (JOB, TOPIC, "hospital-b")
    assert server.pending() == {"hospital-a"}


def test_the_reason_of_a_killed_process_sends_people_to_the_sites_log():
    server = Server()
    take_report(server, report(JobReturnCode.EXCEPTION))
    assert server.told[0][2]["reason"] == DIED


def test_a_process_that_ended_well_is_no_lost_site():
    server = Server()
    take_report(server, report(JobReturnCode.SUCCESS))
    assert not server.told and server.pending() == {"hospital-a"}


def test_a_failure_after_the_jobs_end_changes_nothing():
    server = Server(running=False)
    take_report(server, report(JobReturnCode.EXCEPTION))
    assert not server.told and not server.failed


@pytest.mark.parametrize(
    "request_",
    [
        report(JobReturnCode.EXCEPTION, site="stranger"),
        report(JobReturnCode.EXCEPTION, job="another"),
        report(JobReturnCode.EXCEPTION, job=["0f1e"]),
        Message({CellMessageHeaderKeys.TOKEN: "token of hospital-b"}, "no dictionary"),
        Message({}, {}),
    ],
)
def test_reports_of_strangers_and_of_odd_forms_lose_nobody(request_):
    server = Server()
    take_report(server, request_)
    assert not server.told and not server.failed and len(server.pending()) == 2


def test_a_code_that_is_no_number_counts_as_a_failure_of_that_site():
    server = Server()
    reply = take_report(server, report(["101"]))
    assert server.told[0][2] == {"site": "hospital-b", "reason": DIED}
    assert reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK


def test_a_job_that_has_ended_keeps_its_end_when_a_site_falls_silent_before_it_has_reported():
    server = Server(running=False)
    FederatedServer.notify_dead_client(server, server.sites[1])
    assert len(server.failed) == 1, "FLARE itself fails the job"

    server = Server(running=False)
    LostSites().handle_event(EventType.SYSTEM_START, server)
    FederatedServer.notify_dead_client(server, server.sites[1])
    assert not server.failed and server.pending() == {"hospital-a"}


def test_a_job_that_runs_is_told_of_a_site_that_falls_silent():
    server = Server()
    LostSites().handle_event(EventType.SYSTEM_START, server)
    FederatedServer.notify_dead_client(server, server.sites[1])
    assert not server.failed and server.pending() == {"hospital-a"}
    assert server.told == [(JOB, "client dead", {"site": "hospital-b"})]


def test_a_site_whose_token_is_new_was_started_again():
    server = Server()
    assert not list(started_again(server.run_processes, server.sites))
    server.sites = [server.sites[0], Client("hospital-b", "another token"), Client("hospital-c", "t")]
    assert list(started_again(server.run_processes, server.sites)) == [(JOB, "hospital-b")]


def test_the_component_takes_reports_when_the_server_has_begun_and_looks_at_every_registration():
    server, component = Server(), LostSites()
    component.handle_event(EventType.SYSTEM_START, server)
    (callback,) = server.callbacks.values()
    callback(report(JobReturnCode.EXCEPTION, site="hospital-a"))
    server.sites = [server.sites[0], Client("hospital-b", "another token")]
    component.handle_event(EventType.CLIENT_REGISTER_PROCESSED, server)
    assert [data for _, _, data in server.told] == [
        {"site": "hospital-a", "reason": DIED},
        {"site": "hospital-b", "reason": AGAIN},
    ]
    assert not server.pending()


def given_out(workspace, *detail):
    """Return a server's context when it has given a job out, with what FLARE notes of it."""
    place = Place(workspace, "server", simulator=False)
    job = place.get_job_id()
    (workspace / "server" / job).mkdir(parents=True)
    known = {FLContextKey.JOB_DEPLOY_DETAIL: list(detail), FLContextKey.JOB_RUN_NUMBER: job}
    place.get_prop = lambda key, default=None: known.get(key, default)
    place.register_app_command = lambda topic, command: None
    return place


def test_the_desk_knows_which_sites_did_not_take_the_job(tmp_path):
    said = f"{ERROR_MSG_PREFIX}: [Errno 28] No space left on device: '/kit/job'"
    place = given_out(
        tmp_path,
        "server: OK",
        "hospital-a: OK",
        f"hospital-b: {said}",
        "hospital-c: a\x1b[2J\nb" + 1000 * "b",
    )
    LostSites().handle_event(EventType.JOB_DEPLOYED, place)
    desk = Desk()
    desk.open(place)
    assert (
        desk.lost["hospital-b"] == "it did not take the job: [Errno 28] No space left on device: '/kit/job'"
    )
    assert desk.lost["hospital-c"].startswith("it did not take the job: a bb") and set(desk.lost) == {
        "hospital-b", "hospital-c",
    }  # fmt: skip
    assert all(reason.isprintable() and len(reason) < 400 for reason in desk.lost.values())


class Beginning(Server):
    """A server that begins a job: one site can, one cannot, one has gone meanwhile; a fourth has not answered yet."""

    sites_of_job = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")

    def __init__(self, place):
        super().__init__()
        self.place = place
        self.job_runner._pending_client_outcomes[JOB] = set(self.sites_of_job)

    def get_workspace(self):
        return self.place

    def start_client_job(self, job, client_sites, fl_ctx):
        said = {
            "hospital-a": "Start the client app...",
            "hospital-b": f"{ERROR_MSG_PREFIX}: Start job: OSError",
        }
        replies = [ClientReply("", site, None, AdminMessage("", text)) for site, text in said.items()]
        return [*replies, ClientReply("", "hospital-d", None, None)]


def test_flare_itself_would_end_a_job_that_one_site_cannot_begin_and_ours_tells_the_job(tmp_path):
    place = given_out(tmp_path)
    desk, server = Desk(), Beginning(place)
    desk.open(place)  # the job's process has begun meanwhile
    job, sites = SimpleNamespace(job_id=place.get_job_id()), dict.fromkeys(server.sites_of_job)
    server.job_runner._pending_client_outcomes[job.job_id] = set(sites)
    for named in (sites, {name: None for name in sites if name != "hospital-c"}):
        with pytest.raises(RuntimeError, match=r"not enough replies|Start job: OSError"):
            check_client_replies(server.start_client_job(job, named, server), list(named), "start job")
    LostSites().handle_event(EventType.SYSTEM_START, server)
    replies = server.start_client_job(job, sites, server)
    assert check_client_replies(replies, list(sites), "start job") == []
    assert sorted(one.client_name for one in replies) == list(sites)
    desk.look()
    assert desk.lost == {
        "hospital-b": "it could not begin the job: Start job: OSError",
        "hospital-c": "it was gone when the job began",
    }
    assert server.job_runner._pending_client_outcomes[job.job_id] == {"hospital-a", "hospital-d"}


def test_a_job_that_all_have_taken_has_lost_nobody(tmp_path):
    place = given_out(tmp_path, "server: OK", "hospital-a: OK")
    LostSites().handle_event(EventType.JOB_DEPLOYED, place)
    desk = Desk()
    desk.open(place)
    assert desk.lost == {} and not list(tmp_path.rglob("*.json"))


def test_the_desk_keeps_the_first_reason_of_a_lost_site(tmp_path):
    commands = {}
    desk, place = Desk(), given_out(tmp_path)
    place.register_app_command = lambda topic, command: commands.update({topic: command})
    desk.open(place)
    for reason in ("died", "came back"):
        commands[TOPIC](TOPIC, {"site": "hospital-b", "reason": reason}, None)
    assert desk.lost == {"hospital-b": "died"}
