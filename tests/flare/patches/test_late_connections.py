"""A connection that comes up while its process lets go of all of them."""

import socket
import threading

import pytest
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.tcp_driver import TcpDriver
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.sfm.conn_manager import ConnManager, Mode

from shared_components.flare.patches.late_connections import close_late_connections
from shared_components.flare.patches.replace import REPLACES

PARAMS = [part.value for part in (DriverParams.SCHEME, DriverParams.HOST, DriverParams.PORT, DriverParams.PATH)]


class Late(TcpDriver):
    """Its connection is made, and known to nobody before its connector has ended."""

    def __init__(self):
        super().__init__()
        self.connecting, self.closed = threading.Event(), threading.Event()

    def add_connection(self, conn):
        self.connecting.set()
        assert self.closed.wait(30)
        super().add_connection(conn)

    def shutdown(self):
        super().shutdown()
        self.closed.set()


@pytest.fixture
def stopping():
    """Return a function that ends a manager whose connection is late; it returns the thread that waits for the end."""
    made = []

    def stop():
        listening = socket.create_server(("127.0.0.1", 0))
        driver = Late()
        manager = ConnManager(Endpoint("here"))
        values = ("tcp", *listening.getsockname(), "")
        params = dict(zip(PARAMS, values, strict=True))
        manager.add_connector(driver, params, Mode.ACTIVE)
        manager.start()
        assert driver.connecting.wait(30)
        thread = threading.Thread(target=manager.stop, daemon=True)
        thread.start()
        made.append((listening, driver, thread))
        return thread

    yield stop
    for listening, driver, thread in made:
        listening.close()
        driver.close_all()
        thread.join(30)


def test_it_is_closed_and_the_end_comes(stopping, monkeypatch):
    monkeypatch.setattr(BaseDriver, "add_connection", BaseDriver.add_connection)
    close_late_connections()
    thread = stopping()
    thread.join(30)
    assert not thread.is_alive()


def test_flare_alone_would_wait_for_ever(stopping, monkeypatch):
    """When this fails, FLARE closes such connections itself, and the replacement can go."""
    own = BaseDriver.add_connection
    monkeypatch.setattr(BaseDriver, "add_connection", getattr(own, REPLACES, own))
    thread = stopping()
    thread.join(3)
    assert thread.is_alive()
