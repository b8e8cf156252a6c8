"""One site's answer that cannot be read raises where it is read; FLARE by itself would end the process."""

import importlib.util
import os
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from shared_components.flare.patches.survive_bad_messages import stay_alive


class Ended(BaseException):
    """The process would be gone."""


def receive_garbage():
    """Let FLARE's own code read an update of a site, in the server's process of a job."""
    headers = {
        StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND,
        StreamHeaderKey.TOPIC: ServerCommandNames.SUBMIT_UPDATE,
        StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
    }
    no_cell = SimpleNamespace(
        decode_pass_through_channels=set(), decode_pass_through_topics=set(), get_fobs_context=lambda props: {}
    )
    adapter = cell.Adapter(lambda request: None, SimpleNamespace(fqcn="server.0f1e"), no_cell)
    adapter.call(SimpleNamespace(headers=headers, result=lambda: b"garbage"))


@pytest.fixture(autouse=True)
def end_of_process(monkeypatch):
    def ended(code):
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", ended)
    monkeypatch.setattr(cell, "_is_server_job_cell", as_installed()._is_server_job_cell)


def as_installed():
    """Return FLARE's module read anew: other tests of this process may have made controllers, which change it."""
    spec = importlib.util.spec_from_file_location("cell_as_installed", cell.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_flare_by_itself_ends_the_process():
    with pytest.raises(Ended):
        receive_garbage()


def test_what_cannot_be_read_raises_and_the_process_lives():
    stay_alive()
    with pytest.raises(RuntimeError, match="header"):
        receive_garbage()
