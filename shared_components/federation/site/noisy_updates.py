"""Noisy updates: in a job with noise, a site sends one noisy update per request, entered in the ledger, and no more.

Everything that the noise does not cover stays at the site: numbers of samples, losses, metrics, seconds, memory,
profile items, a method's extras, models for held-out sites. The server still sees whether a site answers, and when.
"""

import json
import math
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shared_components.common.atomic import write_json
from shared_components.common.counted import counted
from shared_components.core.method import Extras, Method
from shared_components.core.partition import Pieces, Role, cut
from shared_components.data.site import Site, SiteError
from shared_components.federation.messages import Job, Message, Request
from shared_components.federation.messages.schema import leaves_with_noise
from shared_components.federation.messages.wire_format import pack_change
from shared_components.federation.privacy.gaussian import Privacy, clip_and_noise, epsilon
from shared_components.federation.privacy.ledger import Entry, enter, ledgers, locked, owners, read_ledger, releases
from shared_components.federation.runs.store import DamagedState, RoundFiles, hash_of, named_groups
from shared_components.federation.setup.limits import limits_file, limits_of
from shared_components.federation.setup.site_setup import SiteSetup
from shared_components.federation.site.agreed_job import Sender
from shared_components.federation.site.sent_updates import Plain

SAMPLES = 1  # number of samples that every site reports: the real number depends on its data
RECORD = "privacy.json"


def strip_to_noisy(reply: Message) -> Message:
    """Remove everything from a reply that depends on the data, except the noisy pieces of a round."""
    header = {key: value for key, value in reply.header.items() if leaves_with_noise(key)}
    header |= {key: value for key, value in (("samples", SAMPLES), ("items", {})) if key in header}
    return Message(header, reply.pieces)


def check_stripped(reply: Message) -> None:
    """Refuse a reply with more than `strip_to_noisy` leaves in it; ValueError names the value."""
    if uncovered := sorted(key for key in reply.header if not leaves_with_noise(key)) or sorted(reply.groups):
        raise ValueError(f"{uncovered[0]} is not covered by the job's privacy")
    if reply.header.get("samples", SAMPLES) != SAMPLES or reply.header.get("items"):
        raise ValueError("numbers of samples and items are not covered by the job's privacy")


def check_entered(reply: Message, site: Site, *, job: str, run: str, round: int) -> None:
    """Refuse pieces unless the ledger's last entry for this round has their hash; raise ValueError."""
    entries = read_ledger(ledgers(site)[0])
    sums = [e.sha256 for e in entries if (e.job, e.run, e.round) == (job, run, round)]
    if reply.pieces and (not sums or sums[-1] != hash_of(reply.pieces)):
        raise ValueError(f"the update is not the one that {ledgers(site)[0]} accounts for")


class Noisy(Plain):
    """The noisy updates of one site in one run."""

    def __init__(self, privacy: Privacy, job: Job, site: Site, sender: Sender) -> None:
        super().__init__(job, sender)
        self._privacy, self._site = privacy, site
        # as many as the site's states: a server may repeat the request of two rounds ago
        self._sent = RoundFiles(sender.folder / "sent", of=f"{job.name}/{sender.run}/{sender.name}, sent", keep=3)
        self._began: Pieces = {}
        self._variances: set[str] = set()  # names of pieces that are running variances

    def strip(self, reply: Message) -> Message:
        return strip_to_noisy(reply)

    def check(self, method: Method, rounds: int) -> None:
        self.refuse_beyond_budget(rounds)

    def refuse_beyond_budget(self, rounds: int) -> None:
        """Refuse ``rounds`` more updates if they would spend more than the site allows.

        SiteError: they would, or a ledger is damaged or lacks an update of this run.
        """
        for path in ledgers(self._site):
            with locked(path):  # fails now if nothing could be entered later
                entries = read_ledger(path)
            self._refuse_if_forgotten(path, entries)
            self._refuse_overspending(path, entries, rounds)

    def _refuse_overspending(self, path: Path, entries: list[Entry], rounds: int = 1) -> None:
        owner = owners(self._site)[path]
        demand = limits_of(owner).privacy
        if demand is None or math.isinf(demand.epsilon):
            return
        before = releases(entries)
        after = before + Counter({self._privacy.noise_multiplier: rounds})
        if epsilon(after, demand.delta) > demand.epsilon:
            spent = epsilon(before, demand.delta)
            raise SiteError(
                f"site {self._sender.name}: {counted(rounds, 'more update')} would spend an epsilon of "
                f"{epsilon(after, demand.delta):.4g} of its data, and it allows {demand.epsilon:g} "
                f"({limits_file(owner)}); {spent:.4g} is spent already ({path})"
            )

    def _refuse_if_forgotten(self, path: Path, entries: list[Entry]) -> None:
        entered = {entry.round for entry in entries if self._is_own(entry)}
        if lost := [round for round in self._sent.rounds() if round not in entered]:
            problem = f"round {lost[0] + 1} was sent, and {path} does not account for it"
            raise SiteError(f"site {self._sender.name}: {problem}; put the account of what was sent back")

    def before_round(self, request: Request) -> Message | None:
        """Return the update already sent to this request, which costs nothing again; None if the request is new.

        SiteError: the request is new, and the site's budget is spent.
        """
        try:
            pieces, values = self._sent.read(request.round)
            if values["asked"] == _hash_of(request):
                own = ledgers(self._site)[0]
                self._refuse_if_forgotten(own, read_ledger(own))
                return Message({"samples": 0}, pieces)
        except DamagedState:
            pass  # missing or damaged: a new update counts again
        self.refuse_beyond_budget(1)
        return None

    def before_training(self, setup: SiteSetup) -> None:
        network, partition = setup.network, setup.partition
        self._began = cut(network.state_dict(), partition, Role.GLOBAL, Role.MIXED)
        names = {f"{path}.running_var" for path, module in network.named_modules() if hasattr(module, "running_var")}
        self._variances = {piece.name for piece in partition if piece.tensor in names}

    def update(self, request: Request, header: dict[str, Any], pieces: Pieces, extras: Extras) -> Message:
        """Return the noisy update, entered in the ledger and stored as the only reply to this request."""
        if not pieces:
            return Message(header, pieces, dict(extras))  # nothing leaves, and nothing is spent
        clip, multiplier, round = self._privacy.clip, self._privacy.noise_multiplier, request.round
        random, keep_positive = self._sender.random, self._variances
        sent, norm = clip_and_noise(
            self._began, pieces, clip=clip, noise_multiplier=multiplier, random=random, variances=keep_positive
        )
        sent = pack_change(sent, self._began, self._job.wire)  # rounding noisy values costs no privacy
        when = datetime.now(UTC).isoformat(timespec="seconds")
        entry = Entry(self._job.name, self._sender.run, round, multiplier, clip, norm > clip, hash_of(sent), when)
        # enter first: a stored update without an entry could be sent uncounted; other jobs may have spent the budget
        enter(self._site, entry, check=self._refuse_overspending)
        self._sent.save(round, sent, {"asked": _hash_of(request)})
        entries = read_ledger(ledgers(self._site)[0])
        own = [entry for entry in entries if self._is_own(entry)]
        record = {
            "updates": len(own),
            "clipped": sum(entry.clipped for entry in own),
            "epsilon": epsilon(releases(own), self._privacy.delta),
            "epsilon_of_all_jobs": epsilon(releases(entries), self._privacy.delta),
        }
        write_json(self._sender.folder / RECORD, record)
        return Message(header, sent, dict(extras))

    def _is_own(self, entry: Entry) -> bool:
        return (entry.job, entry.run) == (self._job.name, self._sender.run)


def _hash_of(request: Request) -> str:
    """Return a hash of all parts of a request that a round's reply depends on."""
    header = {"round": request.round, "items": request.items, **asdict(request.place)}
    tensors = named_groups({"pieces": request.pieces, **request.groups})
    return hash_of(tensors, json.dumps(header, sort_keys=True))
