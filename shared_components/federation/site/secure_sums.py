"""A site's part in secure sums: its key, the other sites' keys, and the sums that it has opened, in one file.

The file is written before anything leaves. By it a site refuses a second vector under one mask, a changed key, and a
second, smaller sum of a round that was opened: the difference of the two would be one site's weights.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from shared_components.common.atomic import atomically
from shared_components.common.schema import fits
from shared_components.core.partition import Pieces
from shared_components.federation.messages import Job, Request, folder_name
from shared_components.federation.runs.store import rounds_in
from shared_components.federation.secure_sums import job_section
from shared_components.federation.secure_sums.fixed_point import FixedPoint, as_pieces
from shared_components.federation.secure_sums.identity import SignedKey
from shared_components.federation.secure_sums.keys import KEY, Keys, public_of
from shared_components.federation.secure_sums.masks import Attempt, mask, unmask
from shared_components.federation.site.sender import Sender

FILE = "secure_sums.json"

logger = logging.getLogger(__name__)


class SiteSums:
    """One site's secure sums in a run; without a startup kit the server alone vouches for keys.

    Raises:
        ValueError: The file is damaged, or gone although a round has been trained.
    """

    def __init__(self, job: Job, sender: Sender) -> None:
        assert job.sums is not None
        self._settings, self._site, self._path = job.sums, sender.name, sender.folder / FILE
        self._identity = sender.identity
        self._run = f"{job.name}/{sender.run}"
        self._kept = self._read(sender.folder)

    def public_key(self) -> SignedKey:
        """Return the site's public key for the enrolment, signed where there is a kit; create the key once."""
        if not self._kept:
            self._kept = {"private": os.urandom(KEY).hex(), "keys": {}, "rounds": {}}
            self._write()
        public = public_of(bytes.fromhex(self._kept["private"]))
        return self._identity.sign(self._run.encode(), public) if self._identity else {"key": public.hex()}

    def begin(self, request: Request) -> None:
        """Record an attempt before anything is trained for it.

        Raises:
            ValueError: It is malformed, was begun before, the round had other sites, the run's list of sites and keys
                has changed, or a key is not of its site.
        """
        nonce, sites, keys = _check_form(request.sums, self._site)
        attempt = self._attempt(request.round, nonce, sites)
        self._check_keys(keys)
        rounds = self._kept["rounds"]
        before = rounds.get(str(attempt.round), {"sites": sites, "opened": None})
        if any(nonce in kept["nonces"] for kept in rounds.values()):
            raise ValueError("the server asks for a second vector under the masks of one attempt; nothing was sent")
        if before["sites"] != sites:
            raise ValueError(
                f"the server asks round {attempt.round + 1} again for a sum of other sites; the difference of two sums "
                "is one site's weights; nothing was sent, start a new run"
            )
        rounds[str(attempt.round)] = {**before, "nonces": [*before.get("nonces", []), nonce]}
        self._kept["keys"] = keys
        self._write()

    def mask(self, request: Request, pieces: Pieces, samples: int) -> dict[str, dict[str, Tensor]]:
        """Return the groups of a masked reply in an attempt that has begun; see `masks.mask`.

        Raises:
            ValueError: A weight is not finite, or too large for the sum.
        """
        attempt = self._attempt(request.round, request.sums["nonce"], request.sums["sites"])
        point = FixedPoint(request.sums["total"], self._settings.fraction_bits)
        found = mask(point.encode(pieces, samples), attempt, self._keys(attempt))
        return {
            job_section.MASKED: as_pieces(found.vector, pieces),
            job_section.SHARES: job_section.as_tensors(found.shares),
            job_section.HASHES: job_section.as_tensors(found.hashes),
        }

    def open(self, request: Request) -> dict[str, dict[str, Tensor]]:
        """Return the shares that remove the masks from one sum; see `masks.unmask`.

        Raises:
            ValueError: The round was not begun with this attempt, another sum of it was opened before, or the sum has
                fewer sites than the threshold.
        """
        nonce, round = _check_nonce(request.sums), request.round
        kept = self._kept.get("rounds", {}).get(str(round), {"nonces": []})
        if nonce not in kept["nonces"]:
            raise ValueError(f"the server asks to open a sum of round {round + 1} that the site has no part in")
        shares = request.groups.get(job_section.SHARES, {})
        sealed = {site: job_section.as_bytes(value) for site, value in shares.items()}
        chosen = sorted(sealed)
        if kept["opened"] not in (None, chosen):
            raise ValueError(
                f"the server asks to open a second sum of round {round + 1}, of other sites than the first; the "
                "difference of two sums is one site's weights; nothing was sent, start a new run"
            )
        attempt = self._attempt(round, nonce, kept["sites"])
        opened = unmask(attempt, self._keys(attempt), sealed)
        self._kept["rounds"][str(round)] = {**kept, "opened": chosen}
        self._write()
        rows = job_section.as_tensors({site: b"".join(shares) for site, shares in opened.items()})
        return {job_section.OPENED: {site: rows[site].reshape(len(shares), -1) for site, shares in opened.items()}}

    def _attempt(self, round: int, nonce: str, sites: Sequence[str]) -> Attempt:
        return Attempt(self._run, round, nonce, tuple(sites), self._settings.threshold)

    def _keys(self, attempt: Attempt) -> Keys:
        public = {site: bytes.fromhex(self._kept["keys"][site]["key"]) for site in attempt.sites}
        return Keys(self._site, bytes.fromhex(self._kept["private"]), public)

    def _check_keys(self, keys: Mapping[str, SignedKey]) -> None:
        if not self._kept:
            raise ValueError(f"{self._path} is gone, the site's key of secure sums; put it back, or start a new run")
        if before := self._kept["keys"]:
            _refuse_other_sites(before, keys)
        else:
            logger.info("site %s: the run's secure sums are of %s", self._site, ", ".join(sorted(keys)))
        for site, key in keys.items():
            if self._identity:
                self._identity.check(site, self._run.encode(), key)
        private = bytes.fromhex(self._kept["private"])
        Keys(self._site, private, {site: bytes.fromhex(key["key"]) for site, key in keys.items()})

    def _read(self, folder: Path) -> dict[str, Any]:
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))
            if set(values) != {"private", "keys", "rounds"}:
                raise ValueError("it has other keys than were written")
            return values
        except FileNotFoundError:
            if rounds_in(folder):
                raise ValueError(
                    f"{self._path} is gone, the site's key of secure sums; put it back, or start a new run"
                ) from None
            return {}
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self._path} cannot be read ({error}); put it back, or start a new run") from error

    def _write(self) -> None:
        with atomically(self._path) as beside:
            beside.touch(mode=0o600)
            beside.write_text(json.dumps(self._kept, indent=1) + "\n", encoding="utf-8")


def _certified(key: SignedKey | None) -> tuple[str, str] | None:
    """Return the parts of a key that stay when it is signed again at a resume."""
    return None if key is None else (key["key"], key.get("certificate", ""))


def _refuse_other_sites(before: Mapping[str, SignedKey], now: Mapping[str, SignedKey]) -> None:
    """Refuse, by a ValueError that names the first, a site that is new, missing or has another key or certificate."""
    for site in sorted({*before, *now}):
        if _certified(before.get(site)) != _certified(now.get(site)):
            what = "a new site" if site not in before else "no" if site not in now else "another key of"
            raise ValueError(
                f"the server names {what} {site}, unlike in the run's first round; nothing was sent, start a new run"
            )


def _check_nonce(sums: Mapping[str, Any]) -> str:
    nonce = sums.get("nonce")
    if not isinstance(nonce, str) or not re.fullmatch(r"[0-9a-f]{32}", nonce):
        raise ValueError(f"the server's message has an odd attempt at a secure sum: {nonce!r:.80}")
    return nonce


def _check_form(sums: Mapping[str, Any], own: str) -> tuple[str, list[str], dict[str, SignedKey]]:
    """Return nonce, sites and keys of a message's section; ValueError where they are malformed or without this site."""
    nonce, sites, keys, total = _check_nonce(sums), sums.get("sites"), sums.get("keys"), sums.get("total")
    if (
        not isinstance(sites, list)
        or own not in sites
        or not isinstance(keys, Mapping)
        or not set(sites) <= set(keys)
        or len(set(sites)) != len(sites)
    ):
        raise ValueError("the server's message has no keys for the sites of a secure sum, or not this site's")
    for site in keys:
        folder_name("site", site)
    # a signature comes with a certificate, so that a key has one part or three
    if not all(fits(k, job_section.PublicKey) and isinstance(k, Mapping) and len(k) != 2 for k in keys.values()):
        raise ValueError("the server's message has an odd key among those of a secure sum")
    if type(total) is not int or total < 1:
        raise ValueError(f"the server's message has an odd number of samples: {total!r:.80}")
    return nonce, sites, {site: dict(key) for site, key in keys.items()}
