"""Streams that are begun at once have numbers of their own; FLARE by itself may give two of them the same."""

import threading

import pytest
from nvflare.fuel.f3.streaming import byte_streamer, stream_utils

from shared_components.flare.patches.stream_ids import count_streams


class Turn:
    """A lock that lets the other thread have its turn as soon as it is given back."""

    def __init__(self, other):
        self.other = other

    def __enter__(self):
        return self

    def __exit__(self, *error):
        other, self.other = self.other, None
        if other is not None:
            other()


@pytest.fixture(autouse=True)
def as_installed(monkeypatch):
    """Put FLARE's own function there, which another test of this process may have replaced, and back."""
    monkeypatch.setattr(byte_streamer, "gen_stream_id", stream_utils.gen_stream_id)


def test_flare_gives_two_streams_one_number(monkeypatch):
    found = []
    monkeypatch.setattr(stream_utils, "lock", Turn(lambda: found.append(stream_utils.gen_stream_id())))
    found.append(stream_utils.gen_stream_id())
    assert len(found) == 2 and len(set(found)) == 1


def test_every_stream_has_a_number_of_its_own():
    given = byte_streamer.gen_stream_id()
    count_streams()
    numbers = byte_streamer.gen_stream_id
    count_streams()  # a second time changes nothing
    assert byte_streamer.gen_stream_id is numbers
    found: list[int] = []

    def take():
        found.extend([byte_streamer.gen_stream_id() for _ in range(2000)])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 8000 and min(found) > given
