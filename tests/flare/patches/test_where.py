"""What each component replaces: one of every deployed process, and the two of a job, which a simulator has alone."""

import pytest
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.streaming import byte_streamer
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorClientRunner
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.server.server_commands import SubmitUpdateCommand
from nvflare.private.fed.utils.app_authz import AppAuthzService

from shared_components.flare.controller import FederationController
from shared_components.flare.executor import SiteExecutor
from shared_components.flare.lost_sites import LostSites
from shared_components.flare.patches.replace import REPLACES
from shared_components.flare.peers import KeepToTheServer

MESSAGES = (CoreCell, "_process_received_msg")
EVERYWHERE = {(CoreCell, "_add_adhoc_connector"), (TxTask, "handle_ack"), (byte_streamer, "gen_stream_id")}
COMMANDS = {(FedAdminAgent, "_dispatch_request"), (AppAuthzService, "authorize_app_info")}
OF_A_CONTROLLER = {
    (cell, "_is_server_job_cell"),
    (SubmitUpdateCommand, "process"),
    (SimulatorClientRunner, "do_one_task"),
}
ALL = {MESSAGES} | COMMANDS | EVERYWHERE | OF_A_CONTROLLER


@pytest.fixture(autouse=True)
def as_installed(monkeypatch):
    """Let each test begin with FLARE's own functions."""
    for owner, name in ALL:
        present = getattr(owner, name)
        own = getattr(present, REPLACES, present)
        monkeypatch.setattr(owner, name, staticmethod(own) if owner is AppAuthzService else own)


@pytest.mark.parametrize(
    ("component", "replaced"),
    [
        (KeepToTheServer, EVERYWHERE | COMMANDS | {MESSAGES}),
        (LostSites, {MESSAGES}),
        (FederationController, EVERYWHERE | OF_A_CONTROLLER),
        (SiteExecutor, EVERYWHERE),
    ],
)
def test_a_component_replaces_what_its_process_needs(component, replaced):
    component()
    assert {(owner, name) for owner, name in ALL if hasattr(getattr(owner, name), REPLACES)} == replaced
