"""What the server does: enrol, send, check updates, aggregate, keep its state. No transport, no FLARE."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from shared_components.atomic import write_json, write_text
from shared_components.card import Card, Metric
from shared_components.checkpoints import save_weights
from shared_components.data.sites import Site
from shared_components.federation import checks, outsider
from shared_components.federation.checks import RejectedUpdate
from shared_components.federation.enrolment import (
    Enrolment,
    check_as_before,
    check_together,
    enrolment_of,
    initial_models,
    outlying_counts,
    profile_header,
    profile_of,
)
from shared_components.federation.messages import FederationError, Job, Message, total_bytes
from shared_components.federation.private import uncovered
from shared_components.federation.runs import change_description, describe, point_latest_to, state_to_resume
from shared_components.federation.store import RECORDS, SINGLE, RoundFiles, groups_of, named_groups
from shared_components.federation.sums import HEADER, check_asked, check_method
from shared_components.federation.sums_server import ServerSums
from shared_components.method import Aggregation, Method, Models, Profile, Update, load_method, site_order
from shared_components.partition import Partition, Pieces, Role
from shared_components.plain_text import one_line
from shared_components.privacy import UNIT, epsilon, farthest
from shared_components.progress import tell
from shared_components.task import Task, checkpoint_notes, make_task
from shared_components.untold import notes_of_untold

if TYPE_CHECKING:
    from shared_components.federation.server_work import Own

logger = logging.getLogger(__name__)

FindSite = Callable[[Job, int], Site]


class ServerRunner:
    """One run of one job. Everything a resume needs is in the files of ``folder``.

    Call ``resume`` first where a run may be there; `protocol.conduct` knows the order of the rest.

    Args:
        job: What to run.
        sites: Names of the sites, in any order.
        folder: The run's folder, see :func:`runs.open_run`.
        find_data: Finds the server's own data, for methods that train at the server; called with the job and the
            number after the last site's.
        start_weights: The file of the first weights, as at the sites; needed where the server trains and the job's
            ``start`` is ``file``.
    """

    def __init__(
        self,
        job: Job,
        sites: Sequence[str],
        folder: Path,
        *,
        find_data: FindSite | None = None,
        start_weights: Path | None = None,
    ) -> None:
        self.job = job
        self.folder = folder
        self.sites = site_order(sites)
        self.method: Method = load_method(job.method, **job.arguments)
        self.sums = ServerSums(job, folder.name) if job.secure_sums else None
        self.round = 0
        self.profiles: dict[str, Profile] = {}
        self.left_out: dict[str, str] = {}  # sites that have not enrolled well, and why
        self.partition = Partition(())
        self.models = Models({}, {})
        self.state: dict[str, Tensor] = {}
        self.kept: dict[str, Tensor] = {}  # of the server's own training: optimizers, memory
        self.answered: dict[str, int] = {}  # the last round of each site whose update counted
        self.records: list[dict[str, Any]] = []
        self.own: Own | None = None  # data of a server that trains, once they have been checked
        self.own_before: dict[str, Any] | None = None  # their profile when the run began
        self._enrolments: dict[str, Enrolment] = {}  # until the run begins
        self._gives: set[str] = set()  # whom the enrolment asks for weights
        self.numbers = {site: n for n, site in enumerate(self.sites)}  # stay, whoever is left out
        self._files = RoundFiles(folder / "server")
        self._find_data = find_data
        self.start_weights = start_weights
        self._asked: list[str] = []  # whom the round under way asks
        self._sent_at = time.perf_counter()
        self._noted: dict[str, dict[str, Any]] = {}  # records of the round under way
        # of the round whose sum is being opened: its valid masked updates, and the rejected
        self._taken: tuple[list[Update], dict[str, str]] | None = None

    def wanted(self, asked: Collection[str]) -> int:
        """How many answers the job asks for: its ``min_sites``, or all."""
        return min(self.job.min_sites or len(asked), len(asked))

    def needed(self, asked: Collection[str]) -> int:
        """How many updates a round needs: what the job asks for, and what the method cannot do without."""
        least = max(self.method.min_sites, self.sums.threshold if self.sums else 1)
        return max(self.wanted(asked), least)

    @property
    def needed_to_unmask(self) -> int:
        """How many sites must open their shares of the masks of a sum."""
        return self.sums.threshold if self.sums else 0

    @property
    def last_record(self) -> dict[str, Any]:
        """The record of the last aggregation."""
        return next(record for record in reversed(self.records) if record["kind"] == "aggregation")

    # ---- enrolment

    def enrol_messages(self) -> dict[str, Message]:
        """Ask every site for its profile, and the first one for the initial model (of several tasks: all).

        Raises:
            FederationError: The method needs more sites or rounds, sends what the job's noise does not cover, trains at
                a server that has no good data, or needs more than the job's secure sums.
        """
        if self.job.noise and (refusal := uncovered(self.method)):
            raise FederationError(refusal)
        if self.job.secure_sums:
            try:
                check_method(self.job, self.method)
                check_asked(self.job, len(self._drawn()))
            except ValueError as error:
                raise FederationError(str(error)) from error
        if self.job.rounds < self.method.least_rounds:
            raise FederationError(
                f"{self.job.method} needs at least {self.method.least_rounds} rounds with these arguments, and the job "
                f"has {self.job.rounds}: what they name would never come; change 'rounds' or the arguments"
            )
        if len(self.sites) < self.method.min_sites:
            raise FederationError(
                f"{self.job.method} needs at least {self.method.min_sites} sites with these arguments, "
                f"and there are {len(self.sites)}; add sites or choose another method"
            )
        if self.method.server_update is not None:
            from shared_components.federation.server_work import open_own  # late: few servers train

            self.own = open_own(self, self._find_data)
        asked = self.sites if self.method.multi_task else self.sites[:1]
        return self._enrol_messages(self.sites, asked if not self.profiles else ())

    def _enrol_messages(self, sites: Sequence[str], initial: Collection[str]) -> dict[str, Message]:
        self._gives = set(initial)
        return {site: Message(self._header(site) | {"send_initial": site in initial}) for site in sites}

    def enrolled(
        self, replies: Mapping[str, Message], failures: Mapping[str, str] | None = None
    ) -> dict[str, Message]:
        """Check each profile by itself, then that they fit together, and start from the first site's weights.

        A site that has not enrolled well is left out of a new run where the job's ``min_sites`` are there without it.

        Returns:
            What is still to be asked, where the site that was to give the weights is left out; nothing once the run
            has begun.

        Raises:
            FederationError: Too few sites are left, or they differ in what they must have in common.
        """
        for site, reply in replies.items():
            try:
                asked = site in self._gives
                found = enrolment_of(site, reply, self.job, self.method, asked=asked)
                if self.sums:
                    self.sums.enrol(site, reply)
                self._enrolments[site] = found
            except FederationError as error:
                self._leave_out(site, str(error))
        reasons = {site: f"{site}: {reason}" for site, reason in (failures or {}).items()}
        for site in [site for site in self.sites if site not in self._enrolments]:
            self._leave_out(site, reasons.get(site, f"{site} did not enrol"))
        profiles = {site: self._enrolments[site].profile for site in self.sites if site in self._enrolments}
        for site, sentence in outlying_counts(profiles).items():
            self._leave_out(site, sentence)
        self._refuse_if_too_few()
        self.sites = [site for site in self.sites if site not in self.left_out]
        if not self.profiles and self.sites[0] not in self._gives:
            return self._enrol_messages(self.sites[:1], self.sites[:1])
        self._begin({site: profiles[site] for site in self.sites})
        return {}

    def _leave_out(self, site: str, sentence: str) -> None:
        self._enrolments.pop(site, None)
        self.left_out.setdefault(site, one_line(sentence))

    def _refuse_if_too_few(self) -> None:
        """Refuse to begin without the sites that the job and its method need; a resume needs all of its sites."""
        asked = self.sites
        every = bool(self.profiles) or self.method.pooled
        least = len(asked) if every else self.needed(asked)
        if len(asked) - len(self.left_out.keys() & set(asked)) < least:
            raise FederationError(f"{'; '.join(self.left_out.values())}; no round was started")
        for sentence in (self.left_out[site] for site in asked if site in self.left_out):
            logger.warning("%s; the run begins without it", sentence)

    def _begin(self, profiles: dict[str, Profile]) -> None:
        """Compare the profiles, with one another and with those of the run's beginning, and note what they say."""
        found = {site: self._enrolments[site] for site in self.sites}
        check_together(self.method, profiles, {site: one.partition.to_json() for site, one in found.items()})
        if self.own is not None:
            self.own.check_beside(profiles, before=self.own_before)
        if self.profiles:
            check_as_before(self.profiles, profiles)
        else:
            self.profiles = profiles
            self.partition = found[self.sites[0]].partition
            given = {site: one.pieces for site, one in found.items()}
            self.models = initial_models(self.method, self.partition, self.sites, given)
            self.state = self.method.aggregator.init(self.partition, self.models, list(profiles.values()))
            facts = self._tasks() | {"start": profiles[self.sites[0]].start}
            facts |= {"left_out": self.left_out} if self.left_out else {}
            facts |= {"privacy": {**asdict(self.job.noise), "unit": UNIT}} if self.job.noise else {}
            write_json(self.folder / "run.json", describe(self.job, self.method, self.sites, facts))
        self._enrolments.clear()
        point_latest_to(self.folder)

    def first_metric(self, site: str) -> Metric:
        """Return the metric that selects a site's best model."""
        return self._task(self.profiles[site].card).metrics[0]

    def _tasks(self) -> dict[str, Any]:
        """Return the sites' cards and the metrics of each kind of task, for whoever reads the run."""
        cards = {site: self.profiles[site].card for site in self.sites}
        metrics = {card.kind: self._task(card).metrics for card in cards.values()}
        return {
            "cards": {site: card.to_json() for site, card in cards.items()},
            "metrics": {kind: [metric.to_json() for metric in rows] for kind, rows in metrics.items()},
        }

    def _task(self, card: Card) -> Task:
        return make_task(card.kind, self.job.open_bundle().tasks.get(card.kind), classes=card.outputs)

    # ---- rounds

    def round_messages(self) -> dict[str, Message]:
        """Return, for the sites that the current round asks, each one's own message."""
        self._asked = self._drawn()
        messages = self._deliveries(self._asked, self.models)
        if self.sums:
            samples = {site: profile.samples for site, profile in self.profiles.items()}
            said = self.sums.begin(self.round, self._asked, samples)
            for message in messages.values():
                message.header[HEADER] = said
        return messages

    def unmask_messages(
        self, replies: Mapping[str, Message], failures: Mapping[str, str]
    ) -> dict[str, Message]:
        """Return what to ask where sums are secure, of the sites whose masked updates are valid; else nothing.

        Raises:
            FederationError: Fewer valid updates than the round needs.
        """
        if self.sums is None:
            return {}
        self._taken = updates, _ = self._enough(replies, failures, time.perf_counter() - self._sent_at)
        return self.sums.messages({update.site: self._header(update.site) for update in updates})

    def unmasked(self, replies: Mapping[str, Message], failures: Mapping[str, str]) -> None:
        """Take what sites have opened of the masks."""
        assert self.sums is not None
        self.sums.opened(replies, failures)

    def _drawn(self) -> list[str]:
        """Return the sites that the current round asks."""
        seed = self.job.open_bundle().training.seed
        return self.job.drawn(self.sites, self.round, seed, least=self.method.min_sites)

    def finish_messages(self) -> dict[str, Message]:
        """Return every site's last delivery."""
        return self._deliveries(self.sites, self._delivered())

    def _delivered(self) -> Models:
        """Return the models as the method delivers them at the end."""
        return self.method.finish(self.state, self.models) if self.method.finish else self.models

    def _deliveries(self, sites: Sequence[str], models: Models) -> dict[str, Message]:
        self._sent_at = time.perf_counter()
        names = sorted(self.method.shares | self.method.may_share)
        items = {name: [self.profiles[site].items.get(name) for site in self.sites] for name in names}
        header: dict[str, Any] = {"items": items}
        if self.method.pooled:
            header["pool"] = self.sites
        groups = {group: pieces for group, pieces in models.broadcast.items() if pieces}
        return {
            site: Message(
                self._header(site) | header | {"answered": self.answered.get(site)},
                models.of(site),
                dict(groups),
            )
            for site in sites
        }

    def note_reply(self, site: str, reply: Message) -> dict[str, Any]:
        """Record a reply as soon as it is there, once; return the record."""
        if site not in self._noted:
            self._noted[site] = self._record_site(site, reply)
        return self._noted[site]

    def check_update(self, site: str, reply: Message) -> Update:
        """Turn a reply into an update.

        Raises:
            RejectedUpdate: It is of another round, misshapen, not finite, too large, or of a wrong sample count.
        """
        samples = checks.check_header(
            reply.header, round=self.round, largest_samples=self.profiles[site].samples
        )
        if self.sums:
            self.sums.take(site, reply, self.models.shared)
            return Update(site, self.round, {}, samples=samples)
        sent, noise = self.models.of(site), 0.0
        if self.job.noise:
            noise = farthest(self.job.noise, sum(value.numel() for value in sent.values()))
        checks.check_pieces(reply.pieces, sent, largest_change=self.job.largest_change, noise=noise)
        checks.check_extras(reply.groups, self.method.extras, self.models.shared, method=self.method.name)
        return Update(site, self.round, reply.pieces, reply.groups, samples)

    def finish_round(self, replies: Mapping[str, Message], failures: Mapping[str, str]) -> dict[str, Any]:
        """Check, aggregate, train where the method does so at the server, keep state and records.

        Returns:
            The aggregation's record.

        Raises:
            FederationError: Fewer valid updates than the round needs, or the server cannot train.
        """
        wall = time.perf_counter() - self._sent_at
        updates, rejected = self._taken or self._enough(replies, failures, wall)
        self._taken = None
        started = time.perf_counter()
        tell("aggregating")
        counted = [self._opened(updates)] if self.sums else updates
        result = self.method.aggregator.apply(self.state, self.partition, self.models, counted)
        seconds = time.perf_counter() - started
        result, trained = self._train(result)
        self.state, self.models = result.state, result.models
        record = {
            "kind": "aggregation",
            "round": self.round,
            "seconds": seconds,
            "seconds_wall": wall,
            "rejected": [{"site": site, "reason": reason} for site, reason in rejected.items()],
            **({"drawn": self._asked} if len(self._asked) < len(self.sites) else {}),
            **({"secure_sum": [update.site for update in updates]} if self.sums else {}),
            **trained,
            **self._spent(),
            **result.report,
        }
        self.records += [self._noted[site] for site in site_order(self._noted)] + [record]
        self._noted = {}
        self.answered |= {update.site: self.round for update in updates}
        self.round += 1
        self._save()
        return record

    def _spent(self) -> dict[str, Any]:
        """Return what the site has spent that has answered most often; what never arrived only its ledger knows."""
        if not self.job.noise:
            return {}
        noisy = Counter(r["site"] for r in (*self.records, *self._noted.values()) if r.get("noisy"))
        most = max(noisy.values(), default=0)
        return {"epsilon": epsilon({self.job.noise.noise_multiplier: most}, self.job.noise.delta)}

    def _opened(self, updates: Sequence[Update]) -> Update:
        """Return the mean of masked updates as one, checked as a single site's would be."""
        assert self.sums is not None
        mean = self.sums.mean(updates, self.models.shared)
        try:
            checks.check_pieces(mean.pieces, self.models.shared, largest_change=self.job.largest_change)
        except RejectedUpdate as error:
            sites = ", ".join(update.site for update in updates)
            raise FederationError(
                f"the secure sum of round {self.round + 1} is of no use, and nobody can tell whose fault it is: "
                f"{error}; ask {sites}"
            ) from error
        return mean

    def _enough(
        self, replies: Mapping[str, Message], failures: Mapping[str, str], wall: float
    ) -> tuple[list[Update], dict[str, str]]:
        """Return the valid updates of a round, and why others are rejected.

        Raises:
            FederationError: They are fewer than the round needs.
        """
        silent = {site: "no answer" for site in self._asked if site not in {*replies, *failures}}
        updates, rejected = self._valid(replies, {**failures, **silent}, wall)
        if len(updates) < (needed := self.needed(self._asked)):
            reasons = "; ".join(f"{site}: {reason}" for site, reason in rejected.items())
            raise FederationError(
                f"round {self.round + 1} has {len(updates)} valid updates and needs {needed}: {reasons}"
            )
        return updates, rejected

    def _valid(
        self, replies: Mapping[str, Message], failures: Mapping[str, str], wall: float
    ) -> tuple[list[Update], dict[str, str]]:
        updates, rejected = [], dict(failures)
        for site in site_order(replies):
            if site not in self._asked:
                rejected[site] = "the round did not ask it"
                continue
            record = self.note_reply(site, replies[site])
            if not record.get("noisy"):  # which says nothing of its seconds
                seconds = record.setdefault("seconds", {})
                seconds["waiting"] = max(0.0, wall - seconds.get("total", 0.0))
            try:
                updates.append(self.check_update(site, replies[site]))
            except RejectedUpdate as error:
                rejected[site] = str(error)
        rejected |= (outliers := checks.outlying_extras(updates))
        updates = [update for update in updates if update.site not in outliers]
        for site, reason in rejected.items():
            logger.warning("round %d: no update of %s: %s", self.round + 1, site, reason)
        return updates, rejected

    def _train(self, result: Aggregation) -> tuple[Aggregation, dict[str, Any]]:
        """Let the method train at the server, where it does; return what it made and the record's addition."""
        if self.method.server_update is None:
            return result, {}
        from shared_components.federation.server_work import train_at_server  # late: few servers train

        logger.info("round %d: %s trains at the server; the sites wait", self.round + 1, self.method.name)
        started = time.perf_counter()
        result, self.kept, losses = train_at_server(self, result)
        return result, {"seconds_training": time.perf_counter() - started, "loss": losses}

    def finished(self, replies: Mapping[str, Message], failures: Mapping[str, str] | None = None) -> None:
        """Record the final models' metrics, and write the outsider's model and those that sites give to the result."""
        given: dict[str, Pieces] = {}
        single: dict[str, Pieces] = {}
        for site in site_order(replies):
            reply = replies[site]
            self.records.append(self._record_site(site, reply))
            if final := reply.header.get("final"):
                self.records.append({**final, "kind": "final", "site": site})
            self._take_model(site, reply, outsider.GROUP, given)
            self._take_model(site, reply, outsider.RESULT, single)
        for site, reason in (failures or {}).items():
            logger.warning("%s has not finished: %s", site, reason)
        profiles = [self.profiles[site] for site in self.sites]
        found = outsider.outsiders(self.method, self.partition, self._delivered(), profiles, given)
        files = outsider.write_outsiders(self.folder / "server", found, self._notes)
        self.records.append({"kind": "outsider", "files": files, "sites": site_order(given)})
        for site, model in single.items():
            notes = {**self._notes(self.profiles[site].card), "site": site}
            save_weights(self.folder / "server" / SINGLE / f"{site}.safetensors", model, notes)
        self._write_records()

    def _notes(self, card: Card) -> dict[str, str]:
        """Return what the header of an outsider's model says."""
        bundle = self.job.open_bundle()
        size = bundle.training.height, bundle.training.width
        numbers = bundle.tasks.get(card.kind, {})
        task, chosen = self._task(card), bundle.chosen
        notes = checkpoint_notes(bundle.name, self.method.name, task, numbers, size=size, network=chosen)
        untold = notes_of_untold(self.method, self.job.arguments, len(self.sites))
        return notes | untold | {"round": str(self.round)}

    def _take_model(self, site: str, reply: Message, group: str, given: dict[str, Pieces]) -> None:
        if group not in reply.groups:
            return
        card = self.profiles[site].card
        alike = next((model for name, model in given.items() if self.profiles[name].card == card), None)
        try:
            given[site] = checks.check_model(reply, group, alike)
        except RejectedUpdate as error:
            logger.warning("the model that %s gives ('%s') is not used: %s", site, group, error)

    def note_failure(self, reason: str) -> bool:
        """Write why the run ended early into its run.json; return whether there is one."""
        return change_description(self.folder, error=reason)

    # ---- state

    def resume(self) -> bool:
        """Load the newest intact state; return whether there was one."""
        found = state_to_resume(self.folder, self.job.rounds)
        if found is None:
            return False
        last, tensors, values = found
        if "answered" not in values:
            raise FederationError(
                f"{self.folder} was begun by an older version of surgfl; finish it with that one, or start a new run"
            )
        self.profiles = {site: profile_of(site, header) for site, header in values["profiles"].items()}
        self.sites = site_order(self.profiles)
        self.partition = Partition.from_json(values["partition"])
        self.records, self.answered = values["records"], values["answered"]
        self.numbers = values.get("numbers") or {site: n for n, site in enumerate(self.sites)}
        self.own_before = values.get("own")  # older states have none
        self.round = last + 1
        groups = groups_of(tensors)
        mixed = {site: groups.get(f"mixed:{site}", {}) for site in self.sites}
        sent = {g.removeprefix("broadcast:"): p for g, p in groups.items() if g.startswith("broadcast:")}
        self.models = Models(groups.get("shared", {}), mixed, sent)
        self.state, self.kept = groups.get("state", {}), groups.get("kept", {})
        change_description(self.folder, rounds=self.job.rounds, error=None)
        return True

    def _save(self) -> None:
        groups = {"shared": self.models.shared, "state": self.state, "kept": self.kept}
        groups |= {f"mixed:{site}": pieces for site, pieces in self.models.mixed.items()}
        groups |= {f"broadcast:{group}": pieces for group, pieces in self.models.broadcast.items()}
        values = {
            "profiles": {site: profile_header(profile) for site, profile in self.profiles.items()},
            "partition": self.partition.to_json(),
            "records": self.records,
            "answered": self.answered,
            "numbers": self.numbers,
            "own": profile_header(self.own.profile) if self.own else None,
        }
        self._files.save(self.round - 1, named_groups(groups), values)
        self._write_records()

    def _write_records(self) -> None:
        write_text(self.folder / "server" / RECORDS, "".join(json.dumps(r) + "\n" for r in self.records))

    def _record_site(self, site: str, reply: Message) -> dict[str, Any]:
        sent = Message({}, self.models.of(site), dict(self.models.broadcast))
        private = {"noisy": bool(reply.pieces)} if self.job.noise else {}
        noted = {} if self.job.noise else checks.noted(reply.header)
        return {
            "kind": "site",
            "round": self.round,
            "site": site,
            **noted,
            **private,
            "bytes": {"up": self._bytes(reply), "down": self._bytes(sent)},
        }

    def _bytes(self, message: Message) -> dict[str, int]:
        sizes = {group: total_bytes(pieces) for group, pieces in message.groups.items()}
        for role in (Role.GLOBAL, Role.MIXED):
            if pieces := self._of_role(message.pieces, role):
                sizes[role.value] = total_bytes(pieces)
        return sizes

    def _of_role(self, pieces: Pieces, role: Role) -> Pieces:
        return {name: pieces[name] for name in self.partition.with_roles(role) if name in pieces}

    def _header(self, site: str) -> dict[str, Any]:
        return {
            "job": self.job.to_json(),
            "run": self.folder.name,
            "round": self.round,
            "index": self.sites.index(site),
            "number": self.numbers[site],
            "numbers": len(self.numbers),
            "sites": len(self.sites),
        }
