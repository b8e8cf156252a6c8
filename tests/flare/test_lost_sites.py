"""A site's report of its end goes through FLARE's own code, and informs the job instead of ending it."""

import contextlib
import errno
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.defs import ERROR_MSG_PREFIX, CellChannelTopic, CellMessageHeaderKeys
from nvflare.private.fed.server.admin import check_client_replies
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.job_runner import JobRunner
from nvflare.private.fed.server.message_send import ClientReply
from nvflare.private.fed.server.server_engine import ServerEngine

from shared_components.common.atomic import not_written
from shared_components.flare.lost_sites import LostSites
from shared_components.flare.patches import site_losses
from shared_components.flare.patches.replace import REPLACES
from shared_components.flare.patches.site_losses import AGAIN, DIED, REASONS, read_lost, take_report
from tests.flare.conftest import put_back

JOB = "0f1e"


@pytest.fixture(autouse=True)
def as_installed(monkeypatch):
    functions = ((FederatedServer, "_resolve_missing_client_outcome"), (ServerEngine, "start_client_job"))
    put_back(monkeypatch, *functions, (CoreCell, "_process_received_msg"))


class Server:
    """The parts of FLARE's server that a report reaches, with records instead of a network."""

    def __init__(self, folder, *, running=True):
        self.folder = folder / JOB
        self.folder.mkdir(parents=True, exist_ok=True)
        self.sites = [Client(name, f"token of {name}") for name in ("hospital-a", "hospital-b")]
        self.dead_jobs: list[tuple[str, str, dict]] = []
        self.detail: list[str] = []  # of the job's deployment
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
        self.server = self.engine = self.cell = self.core_cell = self
        self.logger = SimpleNamespace(warning=print, error=print, info=print)
        self.new_context = lambda: contextlib.nullcontext(self)
        self.get_engine = self.get_workspace = lambda: self
        self.get_clients, self.get_job_id = lambda: self.sites, lambda: JOB
        self.get_run_dir = lambda job: str(self.folder.with_name(job))

    def register_request_cb(self, channel, topic, cb):
        self.callbacks[topic] = cb

    def process_job_failure(self, request):
        return FederatedServer.process_job_failure(self, request)

    def _resolve_missing_client_outcome(self, client, job, reason):
        FederatedServer._resolve_missing_client_outcome(self, client, job, reason)

    def _notify_dead_job(self, client, job, reason):
        self.dead_jobs.append((job, reason, {"site": client.name}))

    def get_prop(self, key, default=None):
        known = {FLContextKey.JOB_DEPLOY_DETAIL: self.detail, FLContextKey.JOB_RUN_NUMBER: JOB}
        return known.get(key, default)

    @property
    def lost(self):
        """The sites that the job's controller reads as lost."""
        return read_lost(self.folder)

    def pending(self):
        return self.job_runner._pending_client_outcomes[JOB]


def report(code, *, site="hospital-b", job=JOB):
    headers = {CellMessageHeaderKeys.TOKEN: f"token of {site}", MessageHeaderKey.ORIGIN: site}
    return Message(headers, {"job_id": job, "code": code, "reason": "because"})


CODES = ("EXCEPTION", "UNSAFE_COMPONENT", "CONFIG_ERROR", "INFRASTRUCTURE_ERROR", "ABORTED")


@pytest.mark.parametrize("code", [getattr(JobReturnCode, name) for name in CODES])
def test_flare_itself_would_end_the_job_and_we_record_the_lost_site(code, tmp_path):
    server = Server(tmp_path)
    server.process_job_failure(report(code))
    assert len(server.failed) == 1

    server = Server(tmp_path)
    take_report(server, report(code))
    assert not server.failed and not server.dead_jobs
    assert server.lost == {"hospital-b": REASONS.get(code, DIED)}
    assert server.pending() == {"hospital-a"}


@pytest.mark.parametrize(
    ("given", "running", "left"),
    [
        (report(JobReturnCode.SUCCESS), True, 1),
        (report(JobReturnCode.EXCEPTION), False, 1),  # after the job's end
        (report(JobReturnCode.EXCEPTION, site="stranger"), True, 2),
        (report(JobReturnCode.EXCEPTION, job="another"), True, 2),
        (report(JobReturnCode.EXCEPTION, job=["0f1e"]), True, 2),
        (Message({CellMessageHeaderKeys.TOKEN: "token of hospital-b"}, "no dictionary"), True, 2),
        (Message({}, {}), True, 2),
    ],
)
def test_success_late_reports_strangers_and_malformed_reports_lose_no_site(given, running, left, tmp_path):
    server = Server(tmp_path, running=running)
    take_report(server, given)
    assert not server.lost and not server.failed and len(server.pending()) == left


def test_a_code_that_is_no_number_counts_as_a_failure_and_a_full_disk_loses_no_other_report(
    tmp_path, monkeypatch, caplog
):
    server = Server(tmp_path)
    reply = take_report(server, report(["101"]))
    assert server.lost == {"hospital-b": DIED}
    assert reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
    full = Mock(side_effect=not_written(tmp_path, OSError(errno.ENOSPC, "No space left on device")))
    monkeypatch.setattr(site_losses, "write_json", full)
    take_report(server, report(JobReturnCode.EXCEPTION, site="hospital-a"))
    assert "is not informed" in caplog.text and not server.pending()


def test_a_running_job_is_informed_of_a_silent_site_and_an_ended_job_keeps_its_outcome(tmp_path):
    server = Server(tmp_path, running=False)
    FederatedServer.notify_dead_client(server, server.sites[1])
    assert len(server.failed) == 1, "FLARE itself fails the job"

    for running, reports in ((False, []), (True, [(JOB, "client dead", {"site": "hospital-b"})])):
        server = Server(tmp_path, running=running)
        LostSites().handle_event(EventType.SYSTEM_START, server)
        FederatedServer.notify_dead_client(server, server.sites[1])
        assert not server.failed and server.pending() == {"hospital-a"} and server.dead_jobs == reports


def test_the_component_handles_reports_after_the_servers_start_and_checks_every_registration(tmp_path):
    server, component = Server(tmp_path), LostSites()
    component.handle_event(EventType.SYSTEM_START, server)
    callback = server.callbacks[CellChannelTopic.REPORT_JOB_FAILURE]
    callback(report(JobReturnCode.EXCEPTION, site="hospital-a"))
    assert not list(site_losses.restarted_sites(server.run_processes, server.sites))
    server.sites = [server.sites[0], Client("hospital-b", "another token"), Client("hospital-c", "t")]
    component.handle_event(EventType.CLIENT_REGISTER_PROCESSED, server)
    assert server.lost == {"hospital-a": DIED, "hospital-b": AGAIN}
    assert not server.pending()


def test_the_job_is_informed_of_sites_that_did_not_accept_it(tmp_path):
    reason = "[Errno 28] No space left on device: '/kit/job'"
    hostile = "a\x1b[2J\nb" + 1000 * "b"
    server = Server(tmp_path)
    server.detail = ["server: OK", "hospital-a: OK"]
    LostSites().handle_event(EventType.JOB_DEPLOYED, server)
    assert server.lost == {} and not list(tmp_path.rglob("*.json"))
    server.detail += [f"hospital-b: {ERROR_MSG_PREFIX}: {reason}", f"hospital-c: {hostile}"]
    LostSites().handle_event(EventType.JOB_DEPLOYED, server)
    lost = server.lost
    assert list(lost) == ["hospital-b", "hospital-c"]
    assert lost["hospital-b"] == f"it did not accept the job: {reason}"
    assert lost["hospital-c"].startswith("it did not accept the job: a bb")
    assert all(reason.isprintable() and len(reason) < 400 for reason in lost.values())


class Beginning(Server):
    """A server that begins a job: one site can, one cannot, one has gone meanwhile, one has not answered yet."""

    job = SimpleNamespace(job_id=JOB)
    sites_of_job = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")

    def __init__(self, folder):
        super().__init__(folder)
        self.job_runner._pending_client_outcomes[JOB] = set(self.sites_of_job)

    def start_client_job(self, job, client_sites, fl_ctx):
        cannot = f"{ERROR_MSG_PREFIX}: Start job: OSError"
        answers = {"hospital-a": "Start the client app...", "hospital-b": cannot}
        replies = [ClientReply("", site, None, AdminMessage("", text)) for site, text in answers.items()]
        return [*replies, ClientReply("", "hospital-d", None, None)]


@pytest.mark.parametrize("gone", [(), ("hospital-c",)], ids=["one cannot begin", "one has gone, too"])
def test_flare_itself_would_end_a_job_that_one_site_cannot_begin_and_we_record_the_site(tmp_path, gone, monkeypatch):
    server = Beginning(tmp_path)
    sites = dict.fromkeys(site for site in server.sites_of_job if site != "hospital-c" or gone)
    with pytest.raises(RuntimeError, match=r"not enough replies" if gone else r"Start job: OSError"):
        check_client_replies(server.start_client_job(server.job, sites, server), list(sites), "start job")
    LostSites().handle_event(EventType.SYSTEM_START, server)
    assert getattr(ServerEngine.start_client_job, REPLACES).__qualname__ == "ServerEngine.start_client_job"
    begin = partial(site_losses.record_failed_starts, Beginning.start_client_job)
    monkeypatch.setattr(Beginning, "start_client_job", lambda *arguments: begin(*arguments))
    replies = server.start_client_job(server.job, sites, server)
    assert check_client_replies(replies, list(sites), "start job") == []
    assert sorted(one.client_name for one in replies) == list(sites)
    cannot = {"hospital-b": "it could not begin the job: Start job: OSError"}
    assert server.lost == cannot | dict.fromkeys(gone, "it was gone when the job began")
    assert server.pending() == set(server.sites_of_job) - server.lost.keys()


def test_the_first_reason_of_a_lost_site_is_kept_and_later_sites_are_added(tmp_path):
    server = Server(tmp_path)
    for site, reason in (("hospital-b", "died"), ("hospital-b", "came back"), ("hospital-a", "died")):
        site_losses.record_lost(server, JOB, {site: reason})
    assert server.lost == {"hospital-b": "died", "hospital-a": "died"}
