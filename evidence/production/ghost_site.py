"""A modified server that joins secure sums as a site, and changes the list of sites after the first round.

The file is copied beside `federation.server` in the server's installation, so it imports nothing from the tests. The
job's name selects the attack: :data:`CERTIFICATE`, :data:`NAME` or :data:`ROSTER`; other jobs run unchanged.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from safetensors.torch import save_file

from shared_components.federation.messages import FederationError, Message
from shared_components.federation.secure_sums import job_section
from shared_components.federation.secure_sums.fixed_point import FixedPoint, as_vector
from shared_components.federation.secure_sums.identity import _PADDING, SHA256, SignedKey, _text
from shared_components.federation.secure_sums.keys import Keys, public_of
from shared_components.federation.secure_sums.masks import Attempt, Masked, mask, take_off, unmask

CERTIFICATE = "joins-by-its-certificate"
"""Ask each site for a sum of itself and the server, with the server's own name and certificate."""
NAME = "joins-by-a-name"
"""The same under the name of a site in the run."""
ROSTER = "changes-the-roster"
"""After a round, remove a site from the first site's list, add one to the second's, and change a key for the third."""
NEW = "hospital-z"
FOUND = "found-of-{}.safetensors"  # file in the server's folder of the run with the weights of the attacked site

_PRIVATE = os.urandom(32)


def change(runner: type) -> None:
    """Modify the server's part of a run.

    Args:
        runner: `federation.server.ServerRunner`.
    """
    ask, open_, opened = runner.round_messages, runner.unmask_messages, runner.unmasked

    def round_messages(self: Any) -> dict[str, Message]:
        messages: dict[str, Message] = ask(self)
        if self.job.name == ROSTER and self.state.round > 0:
            change_keys(self, messages)
        elif joins(self):
            self.ghosts = {site: Ghost(self, site, message) for site, message in messages.items()}
        return messages

    def unmask_messages(self: Any, replies: Mapping[str, Message], failures: Mapping[str, str]) -> Any:
        if not joins(self):
            return open_(self, replies, failures)
        return {site: self.ghosts[site].take(reply) for site, reply in replies.items()}

    def unmasked(self: Any, replies: Mapping[str, Message], failures: Mapping[str, str]) -> None:
        if not joins(self):
            return opened(self, replies, failures)
        for site, reply in replies.items():
            self.ghosts[site].read(reply)
        raise FederationError(f"{sorted(replies)} have opened a sum with the server")

    named = {"round_messages": round_messages, "unmask_messages": unmask_messages, "unmasked": unmasked}
    for name, function in named.items():
        setattr(runner, name, function)


def joins(server: Any) -> bool:
    """Return whether the server joins the sums of its job."""
    return server.job.name in (CERTIFICATE, NAME)


class Ghost:
    """The server as the second site in a sum of two sites.

    Args:
        server: The runner.
        site: Site to attack.
        message: Message to this site; it is modified.
    """

    def __init__(self, server: Any, site: str, message: Message) -> None:
        self.server, self.site = server, site
        name = startup_of(server)[1]
        if server.job.name == NAME:
            name = next(other for other in server.state.sites if other != site)
        said = {**message.header[job_section.HEADER], "sites": [site, name], "nonce": os.urandom(16).hex()}
        said["keys"] = {site: said["keys"][site], name: signed(server)}
        message.header[job_section.HEADER] = said
        self.header = dict(message.header)
        self.attempt = Attempt(about(server), server.state.round, said["nonce"], (site, name), 2)
        public = {one: bytes.fromhex(said["keys"][one]["key"]) for one in (site, name)}
        self.keys, self.point = Keys(name, _PRIVATE, public), FixedPoint(said["total"], 32)

    def take(self, reply: Message) -> Message:
        """Add a vector of zeros to a site's vector, and ask the site to unmask the sum."""
        vector = as_vector(reply.groups[job_section.MASKED])
        shares, hashes = (
            {name: job_section.as_bytes(value) for name, value in reply.groups[group].items()}
            for group in (job_section.SHARES, job_section.HASHES)
        )
        own = mask(vector * 0, self.attempt, self.keys)
        self.masked = {self.site: Masked(vector, shares, hashes), self.keys.site: own}
        self.samples = reply.header["samples"]
        sealed = job_section.as_tensors({name: sent.shares[self.site] for name, sent in self.masked.items()})
        said = {"nonce": self.attempt.nonce, "sites": list(self.masked)}
        return Message({**self.header, job_section.HEADER: said}, {}, {job_section.SHARES: sealed})

    def read(self, reply: Message) -> None:
        """Save the site's weights."""
        own = {name: sent.shares[self.keys.site] for name, sent in self.masked.items()}
        theirs = {
            name: [job_section.as_bytes(row) for row in rows] for name, rows in reply.groups[job_section.OPENED].items()
        }
        total = take_off(
            self.attempt, self.masked,
            {self.site: theirs, self.keys.site: unmask(self.attempt, self.keys, own)},
        )  # fmt: skip
        found = self.point.decode(total, self.samples, self.server.state.models.shared)
        save_file(found, self.server.folder / FOUND.format(self.site))


def change_keys(server: Any, messages: Mapping[str, Message]) -> None:
    """Remove a site from the first site's list, add one to the second's, and change a key for the third."""
    first, second, third = messages
    for site, message in messages.items():
        said = dict(message.header[job_section.HEADER])
        if site == first:
            said |= {part: without(said[part], third) for part in ("keys", "sites")}
        else:
            said["keys"] = {**said["keys"], (NEW if site == second else first): signed(server)}
        message.header[job_section.HEADER] = said


def without(part: Any, site: str) -> Any:
    """Return a list or a mapping of sites without its first site."""
    kept = [one for one in part if one != site]
    return kept if isinstance(part, list) else {one: part[one] for one in kept}


def signed(server: Any) -> SignedKey:
    """Return the server's own key, signed with its own kit."""
    startup, public = startup_of(server)[0], public_of(_PRIVATE)
    private = load_pem_private_key((startup / "server.key").read_bytes(), password=None)
    assert isinstance(private, RSAPrivateKey)
    signature = private.sign(_text(about(server).encode(), public), _PADDING, SHA256())
    certificate = (startup / "server.crt").read_text("utf-8")
    return {"key": public.hex(), "certificate": certificate, "signature": signature.hex()}


def startup_of(server: Any) -> tuple[Path, str]:
    """Return the folder of the server's kit (the parent of surgfl/JOB/RUN), and its name."""
    kit = Path(server.folder).resolve().parents[2]
    return kit / "startup", kit.name


def about(server: Any) -> str:
    """Return the context that signatures of a run's keys include."""
    return f"{server.job.name}/{server.folder.name}"
