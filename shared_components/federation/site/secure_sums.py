"""A site's part in secure sums. One file has its key, the other sites' keys, and the sums that it has opened.

The file is written before anything leaves. With it a site refuses a second vector under one mask, a changed key, and a
second, smaller sum of an opened round: the difference of the two sums would be one site's weights.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from shared_components.common.atomic import atomically
from shared_components.core.method import Extras, Method
from shared_components.core.partition import Pieces
from shared_components.federation.messages import Job, Message, Request, folder_name
from shared_components.federation.messages.parse import check_pieces
from shared_components.federation.runs.store import rounds_in
from shared_components.federation.secure_sums import job_section
from shared_components.federation.secure_sums.fixed_point import FixedPoint, as_pieces
from shared_components.federation.secure_sums.identity import SignedKey
from shared_components.federation.secure_sums.keys import KEY, Keys, public_of
from shared_components.federation.secure_sums.masks import Attempt, mask, unmask
from shared_components.federation.site.agreed_job import Sender
from shared_components.federation.site.sent_updates import Plain

FILE = "secure_sums.json"
TWO_SUMS = "the difference of two sums is one site's weights"
REMEDY = "nothing was sent, start a new run"

logger = logging.getLogger(__name__)


class Masked(Plain):
    """Updates under masks that cancel only in the sum of several sites.

    Without a startup kit only the server vouches for keys. ValueError in any method: the file is damaged, or gone
    although a round has been trained.
    """

    def __init__(self, job: Job, sender: Sender) -> None:
        super().__init__(job, sender)
        assert job.sums is not None
        self._settings, self._site, self._identity = job.sums, sender.name, sender.identity
        self._path, self._run = sender.folder / FILE, f"{job.name}/{sender.run}"

    def check(self, method: Method, rounds: int) -> None:
        job_section.check_method(method)

    def enrolment(self) -> dict[str, Any]:
        """Return the site's public key, signed if there is a kit; create the key once."""
        if not self._state:
            self._state.update({"private": os.urandom(KEY).hex(), "keys": {}, "rounds": {}})
            self._write()
        public = public_of(bytes.fromhex(self._state["private"]))
        key = self._identity.sign(self._run.encode(), public) if self._identity else {"key": public.hex()}
        return {job_section.KEY: key}

    def before_round(self, request: Request) -> None:
        """Record an attempt before the training for it.

        ValueError: the request is incomplete, the attempt began before, the round had other sites, the run's sites or
        keys have changed, or a key does not belong to its site.
        """
        nonce, sites, keys = self._parts(request)
        attempt = self._attempt(request.round, nonce, sites)
        self._check_keys(keys)
        rounds = self._state["rounds"]
        before = rounds.get(str(attempt.round), {"sites": sites, "opened": None})
        if any(nonce in recorded["nonces"] for recorded in rounds.values()):
            raise ValueError("the server asks for a second vector under the masks of one attempt; nothing was sent")
        if before["sites"] != sites:
            problem = f"the server asks round {attempt.round + 1} again for a sum of other sites"
            raise ValueError(f"{problem}; {TWO_SUMS}; {REMEDY}")
        rounds[str(attempt.round)] = {**before, "nonces": [*before.get("nonces", []), nonce]}
        self._state["keys"] = keys
        self._write()

    def update(self, request: Request, header: dict[str, Any], pieces: Pieces, extras: Extras) -> Message:
        """Return the masked reply to an attempt that has begun; ValueError if a weight is too large."""
        # the server cannot see the update, so the site makes the server's check
        check_pieces(pieces, request.pieces, largest_change=self._job.largest_change)
        attempt = self._attempt(request.round, request.sums["nonce"], request.sums["sites"])
        point = FixedPoint(request.sums["total"], self._settings.fraction_bits)
        masked = mask(point.encode(pieces, header["samples"]), attempt, self._keys(attempt))
        groups = {
            job_section.MASKED: as_pieces(masked.vector, pieces),
            job_section.SHARES: job_section.as_tensors(masked.shares),
            job_section.HASHES: job_section.as_tensors(masked.hashes),
        }
        return Message(header, {}, groups)

    def unmask(self, request: Request) -> Message:
        """Return the shares that remove the masks from one sum; see `masks.unmask`.

        ValueError: the site did not begin this attempt, has opened another sum of the round, or the sum has fewer sites
        than the threshold.
        """
        nonce, round = request.sums["nonce"], request.round
        recorded = self._state.get("rounds", {}).get(str(round), {"nonces": []})
        if nonce not in recorded["nonces"]:
            raise ValueError(f"the server asks to open a sum of round {round + 1} that the site has no part in")
        sealed = job_section.bytes_of(request.groups.get(job_section.SHARES, {}))
        if recorded["opened"] not in (None, sorted(sealed)):
            problem = f"the server asks to open a second sum of round {round + 1}, of other sites than the first"
            raise ValueError(f"{problem}; {TWO_SUMS}; {REMEDY}")
        attempt = self._attempt(round, nonce, recorded["sites"])
        opened = unmask(attempt, self._keys(attempt), sealed)
        self._state["rounds"][str(round)] = {**recorded, "opened": sorted(sealed)}
        self._write()
        rows = job_section.as_tensors({site: b"".join(shares) for site, shares in opened.items()})
        shaped = {site: rows[site].reshape(len(shares), -1) for site, shares in opened.items()}
        return Message({}, {}, {job_section.OPENED: shaped})

    def _parts(self, request: Request) -> tuple[str, list[str], dict[str, SignedKey]]:
        """Return nonce, sites and keys of a round's request; the schema has checked their form."""
        sums = request.sums
        sites, keys = sums.get("sites") or [], sums.get("keys") or {}
        if self._site not in sites or not set(sites) <= set(keys) or len(set(sites)) != len(sites):
            raise ValueError("the server's message has no keys for the sites of a secure sum, or not this site's")
        for site, key in keys.items():
            folder_name("site", site)
            if len(key) == 2:
                raise ValueError(f"the server's key of {site} needs both a signature and a certificate")
        if sums.get("total") is None:
            raise ValueError("the server's message has no number of samples for a secure sum")
        return sums["nonce"], sites, {site: dict(key) for site, key in keys.items()}

    def _attempt(self, round: int, nonce: str, sites: Sequence[str]) -> Attempt:
        return Attempt(self._run, round, nonce, tuple(sites), self._settings.threshold)

    def _keys(self, attempt: Attempt) -> Keys:
        public = {site: bytes.fromhex(self._state["keys"][site]["key"]) for site in attempt.sites}
        return Keys(self._site, bytes.fromhex(self._state["private"]), public)

    def _check_keys(self, keys: Mapping[str, SignedKey]) -> None:
        """Refuse a site that is new or missing, or has another key or certificate than in the first round."""
        if not self._state:
            raise self._gone()
        before = self._state["keys"]
        if not before:
            logger.info("site %s: the run's secure sums are of %s", self._site, ", ".join(sorted(keys)))
        for site in sorted({*before, *keys}) if before else ():
            if _lasting_parts(before.get(site)) != _lasting_parts(keys.get(site)):
                what = "a new site" if site not in before else "no" if site not in keys else "another key of"
                raise ValueError(f"the server names {what} {site}, unlike in the run's first round; {REMEDY}")
        for site, key in keys.items():
            if self._identity:
                self._identity.check(site, self._run.encode(), key)
        public = {site: bytes.fromhex(key["key"]) for site, key in keys.items()}
        Keys(self._site, bytes.fromhex(self._state["private"]), public)

    def _gone(self) -> ValueError:
        return ValueError(f"{self._path} is gone, the site's key of secure sums; put it back, or start a new run")

    @cached_property
    def _state(self) -> dict[str, Any]:
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))
            if set(values) != {"private", "keys", "rounds"}:
                raise ValueError("it has other keys than were written")
            return values
        except FileNotFoundError:
            if rounds_in(self._path.parent):
                raise self._gone() from None
            return {}
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self._path} cannot be read ({error}); put it back, or start a new run") from error

    def _write(self) -> None:
        with atomically(self._path) as beside:
            beside.touch(mode=0o600)
            beside.write_text(json.dumps(self._state, indent=1) + "\n", encoding="utf-8")


def _lasting_parts(key: SignedKey | None) -> tuple[str, str] | None:
    """Return key and certificate; a resume signs the key again."""
    return None if key is None else (key["key"], key.get("certificate", ""))
