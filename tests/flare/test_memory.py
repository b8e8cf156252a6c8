"""A round's memory is freed when the round ends, even reference cycles such as FLARE's streams."""

import gc
import logging
import subprocess
import sys
import weakref

import pytest

from shared_components.flare import memory, wire


class Stream:
    """Refers to itself and to the data that it has sent."""

    def __init__(self):
        self.task, self.sent = self, bytearray(1_000_000)


@pytest.fixture(autouse=True)
def no_automatic_collection(monkeypatch):
    monkeypatch.setattr(memory, "freeze_objects", lambda: None)  # it would also exclude the streams
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
def test_the_server_frees_a_rounds_streams_when_the_round_ends(by_hand):
    streams, left = [], []

    def answer(controller, site, task):
        reply = controller.ask(site, task)  # first, since a site also frees memory
        if task.name == "finish":
            left.append([name for name, stream in streams if stream() is not None])
        else:
            streams.append((f"{task.name} at {site}", weakref.ref(Stream())))
        return reply

    controller = by_hand(rounds=2, answer=answer).start()
    assert controller.panics == [] and len(streams) == 9
    assert left == [[], [], []]


def test_a_site_frees_earlier_streams(by_hand):
    left = []

    def answer(controller, site, task):
        stream = weakref.ref(Stream())
        reply = controller.ask(site, task)
        left.append(stream() is not None)
        return reply

    assert by_hand(answer=answer).start().panics == []
    assert left == [False] * 9


def test_existing_objects_are_excluded_once_and_a_later_cycle_is_collected_silently(monkeypatch, caplog):
    monkeypatch.undo()
    wire.register()
    gc.unfreeze()
    memory.freeze_objects.cache_clear()
    memory.freeze_objects()
    spared = gc.get_freeze_count()
    stream = weakref.ref(Stream())
    assert stream() is not None
    memory.freeze_objects()
    assert 0 < gc.get_freeze_count() <= spared, "later objects are excluded, too"
    with caplog.at_level(logging.INFO):
        memory.let_go()
    assert stream() is None and caplog.records == []
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_a_large_block_returns_to_the_system_as_soon_as_it_is_free():
    """In a separate process, since the limit applies to a whole process."""
    code = """
import sys, psutil, torch
from shared_components.flare import memory
if sys.argv[1] == "limit":
    assert memory.keep_no_large_pieces()
held = []
before = psutil.Process().memory_info().rss
for _ in range(3):
    x = []
    for _ in range(60):
        x.append(torch.ones(300_000))
        held.append(bytes(100_000))
    del x
print(psutil.Process().memory_info().rss - before)
"""
    grown = {
        how: int(subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=True).stdout)
        for how in ("limit", "none")
    }
    assert grown["limit"] < 30e6 < grown["none"], grown
