"""A network of namespaces carries, loses and is cut as it is told, and nothing of it stays. Needs root."""

import os
import subprocess
import sys

import pytest

from evidence.production.network import Network

PORT = 5000
SERVE = f"""\
import socket
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind(("0.0.0.0", {PORT}))
print("ready", flush=True)
while True:
    own.sendto(*own.recvfrom(100))
"""
ASK = f"""\
import socket, sys
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.settimeout(0.05)
came = 0
for _ in range(int(sys.argv[2])):
    own.sendto(b"x", (sys.argv[1], {PORT}))
    try:
        came += len(own.recv(100))
    except TimeoutError:
        pass
print(came)
"""


def left():
    """Return all namespaces and devices of this machine that a network makes."""
    words = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout.split()
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    return {word for word in words + spaces if word.startswith(("surgfl-", "sb", "sf", "sn"))}


@pytest.mark.skipif(os.geteuid() != 0 or not os.access("/dev/net/tun", os.W_OK), reason="needs root and /dev/net/tun")
def test_a_link_carries_loses_and_is_cut():
    with Network(["hospital-a", "hospital-b"]) as network:
        begin, link = network.prefixes, network.links["hospital-b"]

        def asked(name, count):
            command = [*begin[name], sys.executable, "-c", ASK, network.server, str(count)]
            return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

        command = [*begin[network.server], sys.executable, "-c", SERVE]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout.readline() == "ready\n"
                asked("hospital-a", 3), asked("hospital-b", 3)  # each finds the other's address
                assert asked("hospital-b", 10) > 8
                link.loss = 0.5  # of each way: a quarter comes back
                assert 2 < asked("hospital-b", 40) < 30
                link.cut = True
                assert asked("hospital-b", 10) == 0
                assert asked("hospital-a", 10) > 8, "the others are not cut"
                link.cut, link.loss = False, 0.0
                asked("hospital-b", 3)
                assert asked("hospital-b", 10) > 8
            finally:
                server.kill()
        own = network._token
        assert any(own in word for word in left())
    assert not any(own in word for word in left())
