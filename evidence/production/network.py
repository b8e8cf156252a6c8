"""A virtual network for a deployment: one namespace per party, joined by a bridge, with links that can fail.

    with Network({"server": None, "hospital-b": None}) as network:
        network.links["hospital-b"].rate = 1_000_000     # bits per second
        network.links["hospital-b"].loss = 0.05          # share of lost frames
        network.links["hospital-b"].cut = True

Needs root and /dev/net/tun. A party's link is a pair of tap devices, one in its namespace and one on the bridge. This
process carries frames between them, since not every kernel has `netem`.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack

SET_INTERFACE, TAP, NO_HEADER = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h
LONGEST_FRAME = 65536
WAITING = 50  # frames that a device queues for a slow link; further frames are dropped, as by a router


class Link:
    """A party's cable; ``rate`` (bits per second, 0: no limit), ``loss`` (share) and ``cut`` can change at any time.

    Attributes:
        carried, dropped: Number of frames so far.
    """

    def __init__(self, near: int, far: int, *, seed: int) -> None:
        self.rate, self.loss, self.cut = 0.0, 0.0, False
        self.carried = self.dropped = 0
        self._ends, self._chance = (near, far), random.Random(seed)
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._carry, args=pair, daemon=True) for pair in ((near, far), (far, near))
        ]
        for thread in self._threads:
            thread.start()

    def _carry(self, source: int, target: int) -> None:
        while not self._over.is_set():
            if not select.select([source], [], [], 0.2)[0]:
                continue
            try:
                frame = os.read(source, LONGEST_FRAME)
                if self.rate:
                    time.sleep(len(frame) * 8 / self.rate)
                if self.cut or self._chance.random() < self.loss:
                    self.dropped += 1
                    continue
                os.write(target, frame)
                self.carried += 1
            except OSError:  # the device is not up
                time.sleep(0.05)

    def close(self) -> None:
        """Close both ends, which removes the devices."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            os.close(end)


class Network:
    """Namespaces and links of parties; leaving the context removes them.

    Args:
        server: Name of the server, whose address the others use.
        sites: The other parties.

    Raises:
        PermissionError: The user may not create namespaces.
    """

    def __init__(self, sites: Iterable[str]) -> None:
        if os.geteuid() != 0:
            raise PermissionError("needs root, for network namespaces")
        self._token = f"{os.getpid() % 0xFFFF:x}{random.randrange(256):02x}"
        self._net = f"10.{random.randrange(64, 255)}.{random.randrange(256)}"
        self.server = f"{self._net}.1"
        self._names = [self.server, *sites]
        self.links: dict[str, Link] = {}
        self._made = ExitStack()

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self._made.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._made.close()

    @property
    def prefixes(self) -> dict[str, list[str]]:
        """Prefix of a party's commands."""
        return {name: ["ip", "netns", "exec", self._space(name)] for name in self._names}

    def _space(self, name: str) -> str:
        return f"surgfl-{self._token}-{self._names.index(name)}"

    def _make(self) -> None:
        bridge = f"sb{self._token}"
        _ip("link", "add", bridge, "type", "bridge")
        self._made.callback(_ip, "link", "del", bridge)
        _ip("address", "add", f"{self._net}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for number, name in enumerate(self._names):
            space, near, far = self._space(name), f"sn{self._token}{number}", f"sf{self._token}{number}"
            _ip("netns", "add", space)
            self._made.callback(_ip, "netns", "del", space)
            ends = _tap(near), _tap(far)
            _ip("link", "set", near, "netns", space)
            _ip("-n", space, "address", "add", f"{self._net}.{number + 1}/24", "dev", near)
            _ip("-n", space, "link", "set", near, "txqueuelen", str(WAITING), "up")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("link", "set", far, "master", bridge, "txqueuelen", str(WAITING), "up")
            self.links[name] = Link(*ends, seed=number)
            self._made.callback(self.links[name].close)


def _tap(name: str) -> int:
    """Open a device whose frames this process reads and writes; it exists as long as the file is open."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(end, SET_INTERFACE, struct.pack("16sH22x", name.encode(), TAP | NO_HEADER))
    return end


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"ip {' '.join(words)}: {done.stderr.strip()}", file=sys.stderr)
        done.check_returncode()
