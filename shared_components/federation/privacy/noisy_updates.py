"""What leaves a site whose job has noise: the noisy update once per question, entered in its ledger, and no word more.

What the noise does not cover does not leave: numbers of samples, losses, metrics, seconds, memory, profile items, a
method's extras, models for outsiders. How long a site takes, and whether it answers, a server sees all the same.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from torch import nn

from shared_components.common.atomic import write_json
from shared_components.core.method import Method
from shared_components.core.partition import Partition, Pieces
from shared_components.data.site import Site, SiteError
from shared_components.federation.messages import Job, Message
from shared_components.federation.privacy.gaussian import Privacy, Randomness, clip_and_noise, epsilon
from shared_components.federation.privacy.ledger import Entry, alone, enter, ledgers, read_ledger, releases
from shared_components.federation.site.limits import FILE, limits_of
from shared_components.federation.store import DamagedState, RoundFiles, hash_of, named_groups

SAYS = {
    "enrol": {"round", "samples", "card", "items", "partition", "fixed", "prepared", "start"},
    "round": {"round", "samples"},
    "finish": {"round"},
}
"""What of an answer's header leaves."""
SAMPLES = 1  # that every site reports: how many it has is of its data
RECORD = "privacy.json"


def why_not_private(method: Method) -> str:
    """Say why noise on the weights would not cover what a method sends; nothing where it does."""
    if method.requires.pooled:
        why = "pools the sites' frames"
    elif method.local.extras:
        why = f"sends {min(method.local.extras)!r} beside the weights"
    elif method.requires.items:
        why = f"needs {min(method.requires.items)!r} of every site"
    else:
        return ""
    return (
        f"{method.name} {why}, which the job's 'privacy' does not cover; choose a method or arguments that "
        "send weights alone (docs/privacy.md)"
    )


def strip_to_noisy(task: str, reply: Message) -> Message:
    """Return an answer without anything that depends on the data, the noisy pieces of a round apart."""
    header = {key: value for key, value in reply.header.items() if key in SAYS[task]}
    header |= {key: value for key, value in (("samples", SAMPLES), ("items", {})) if key in header}
    return Message(header, reply.pieces)


def check_stripped(task: str, reply: Message) -> None:
    """Refuse an answer that says more than `strip_to_noisy` leaves.

    Raises:
        ValueError: One sentence.
    """
    if odd := sorted({*reply.header} - SAYS[task]) or sorted(reply.groups):
        raise ValueError(f"{odd[0]} is not covered by the job's privacy; nothing was sent")
    if reply.header.get("samples", SAMPLES) != SAMPLES or reply.header.get("items"):
        raise ValueError("numbers of samples and items are not covered by the job's privacy; nothing was sent")


def check_entered(reply: Message, site: Site, *, job: str, run: str, round: int) -> None:
    """Refuse pieces that are not the noisy ones which the site's ledger has last for this round.

    Raises:
        ValueError: One sentence.
    """
    entries = read_ledger(ledgers(site)[0])
    sums = [e.sha256 for e in entries if (e.job, e.run, e.round) == (job, run, round)]
    if reply.pieces and (not sums or sums[-1] != hash_of(reply.pieces)):
        raise ValueError(f"the update is not the one that {ledgers(site)[0]} accounts for; nothing was sent")


class Release:
    """The noisy updates of one site in one run.

    Args:
        privacy: The job's.
        job: Whose they are.
        site: Whose data.
        name: The federation's name of the site.
        folder: The site's own of the run.
        run: Its name.
        random: Where the noise comes from.
    """

    def __init__(
        self,
        privacy: Privacy,
        job: Job,
        site: Site,
        *,
        name: str,
        folder: Path,
        run: str,
        random: Randomness = os.urandom,
    ) -> None:
        self.privacy, self.job, self.site, self.name = privacy, job, site, name
        self.folder, self.run = folder, run
        self._random = random
        # as many as the site's own states: a server may ask again what was two rounds ago
        self._sent = RoundFiles(folder / "sent", of=f"{job.name}/{run}/{name}, sent", keep=3)

    def refuse_beyond_budget(self, rounds: int) -> None:
        """Refuse what would spend more than the site allows.

        Args:
            rounds: Updates that are to come.

        Raises:
            SiteError: The sentence says how much there was; or the ledger is damaged or has lost what this run sent.
        """
        demand = limits_of(self.site).privacy
        for path in ledgers(self.site):
            with alone(path):  # which fails now where nothing could be entered later
                entries = read_ledger(path)
            self._refuse_if_forgotten(path, entries)
            if demand is None or demand.epsilon is None:
                continue
            before = releases(entries)
            after = before + Counter({self.privacy.noise_multiplier: rounds})
            if epsilon(after, demand.delta) > demand.epsilon:
                spent = epsilon(before, demand.delta)
                raise SiteError(
                    f"site {self.name}: {rounds} more updates would spend an epsilon of "
                    f"{epsilon(after, demand.delta):.4g} of its data, and it allows {demand.epsilon:g} "
                    f"({self.site.path.with_name(FILE)}); {spent:.4g} is spent already ({path})"
                )

    def _refuse_if_forgotten(self, path: Path, entries: list[Entry]) -> None:
        known = {entry.round for entry in entries if self._is_own(entry)}
        if lost := [round for round in self._sent.rounds() if round not in known]:
            raise SiteError(
                f"site {self.name}: round {lost[0] + 1} was sent, and {path} does not account for it; put the account "
                "of what was sent back"
            )

    def sent_before(self, message: Message) -> Pieces | None:
        """Return what was sent when the very same was asked, which costs nothing again; None where it is new.

        Raises:
            SiteError: It is new, and the site's budget is spent.
        """
        try:
            pieces, values = self._sent.read(message.header["round"])
            if values["asked"] == _question(message):
                self._refuse_if_forgotten(ledgers(self.site)[0], read_ledger(ledgers(self.site)[0]))
                return pieces
        except DamagedState:
            pass  # none, or damaged: then it is made anew, and counts again
        self.refuse_beyond_budget(1)
        return None

    def noisy(self, message: Message, began: Pieces, trained: Pieces, *, variances: Collection[str] = ()) -> Pieces:
        """Return the noisy update, entered in the ledger and kept, so that it is the only one to this question.

        Args:
            message: The round's.
            began: The pieces that the training began with.
            trained: Those that it ended with.
            variances: See `clip_and_noise`.
        """
        if not trained:
            return trained  # nothing leaves, and nothing is spent
        sent, norm = clip_and_noise(
            began,
            trained,
            clip=self.privacy.clip,
            noise_multiplier=self.privacy.noise_multiplier,
            random=self._random,
            variances=variances,
        )
        round = message.header["round"]
        entry = Entry(
            self.job.name,
            self.run,
            round,
            self.privacy.noise_multiplier,
            self.privacy.clip,
            norm > self.privacy.clip,
            hash_of(sent),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        enter(self.site, entry)  # first: what is kept without being entered would be sent for nothing
        self._sent.save(round, sent, {"asked": _question(message)})
        self._write_record()
        return sent

    def _is_own(self, entry: Entry) -> bool:
        return (entry.job, entry.run) == (self.job.name, self.run)

    def _write_record(self) -> None:
        """Write what the run has spent into the site's own folder, for its report."""
        entries = read_ledger(ledgers(self.site)[0])
        own = [entry for entry in entries if self._is_own(entry)]
        delta = self.privacy.delta
        record = {
            "updates": len(own),
            "clipped": sum(entry.clipped for entry in own),
            "epsilon": epsilon(releases(own), delta),
            "epsilon_of_all_jobs": epsilon(releases(entries), delta),
        }
        write_json(self.folder / RECORD, record)


def variances(network: nn.Module, partition: Partition) -> set[str]:
    """Return the names of pieces that are running variances."""
    names = {f"{path}.running_var" for path, module in network.named_modules() if hasattr(module, "running_var")}
    return {piece.name for piece in partition if piece.tensor in names}


def _question(message: Message) -> str:
    """Return a hash of everything that a round's answer depends on."""
    header = {key: message.header.get(key) for key in ("round", "index", "sites", "number", "numbers", "items")}
    tensors = named_groups({"pieces": message.pieces, **message.groups})
    return hash_of(tensors, json.dumps(header, sort_keys=True))
