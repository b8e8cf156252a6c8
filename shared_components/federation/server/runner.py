"""What the server does: enrol, send, check updates, aggregate, keep its state. No transport, no FLARE."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared_components.common.atomic import write_json
from shared_components.common.progress import report_progress
from shared_components.core.card import Metric
from shared_components.core.method import Aggregation, Method, Models, Update, load_method, site_order
from shared_components.federation.messages import FederationError, Job, Message
from shared_components.federation.runs import (
    ENDED,
    change_description,
    describe,
    point_latest_to,
    server_files,
    state_to_resume,
)
from shared_components.federation.secure_sums.identity import Project
from shared_components.federation.server import update_checks
from shared_components.federation.server.admission import Admission, check_possible
from shared_components.federation.server.enrolment import check_as_before, initial_models, profile_header
from shared_components.federation.server.requests import deliveries, header_for
from shared_components.federation.server.result import task_of, write_models
from shared_components.federation.server.round_log import RoundLog
from shared_components.federation.server.state import ServerState
from shared_components.federation.server.training import FindSite, Own, open_own, train_at_server
from shared_components.federation.server.update_checks import RejectedUpdate
from shared_components.federation.server.upload import upload_of
from shared_components.federation.store import RECORDS

logger = logging.getLogger(__name__)


@dataclass
class Asking:
    """The round under way: whom it asks and since when; where its sum is being opened, what came of the updates."""

    sites: list[str] = field(default_factory=list)
    since: float = field(default_factory=time.perf_counter)
    taken: tuple[list[Update], dict[str, str]] | None = None  # the valid masked updates, and the rejected


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
        project: The server's startup kit, by which it knows the sites' keys of secure sums; None: there is none.
    """

    def __init__(
        self,
        job: Job,
        sites: Sequence[str],
        folder: Path,
        *,
        find_data: FindSite | None = None,
        start_weights: Path | None = None,
        project: Project | None = None,
    ) -> None:
        self.job = job
        self.folder = folder
        self.method: Method = load_method(job.method, **job.arguments)
        self.state = ServerState.of_new_run(sites)
        self.upload = upload_of(job, folder.name, project)
        self.round_log = RoundLog(folder / "server" / RECORDS, self.upload)
        self.start_weights = start_weights
        self.left_out: dict[str, str] = {}  # sites that have not enrolled well, and why
        self.own: Own | None = None  # data of a server that trains, once they have been checked
        self._find_data = find_data
        self._admission: Admission | None = None  # until the run begins
        self._asking = Asking()

    def wanted(self, asked: Collection[str]) -> int:
        """How many answers the job asks for: its ``min_sites``, or all."""
        return min(self.job.min_sites or len(asked), len(asked))

    def needed(self, asked: Collection[str]) -> int:
        """How many updates a round needs: what the job asks for, and what the method cannot do without."""
        return max(self.wanted(asked), self.method.requires.min_sites, self.upload.least)

    @property
    def needed_to_unmask(self) -> int:
        """How many sites must open their shares of the masks of a sum."""
        return self.upload.to_unmask

    @property
    def records(self) -> list[dict[str, Any]]:
        """What has been written down of all rounds so far."""
        return self.round_log.records

    @property
    def last_record(self) -> dict[str, Any]:
        """The record of the last aggregation."""
        return self.round_log.last_aggregation

    # ---- enrolment

    def enrol_messages(self) -> dict[str, Message]:
        """Ask every site for its profile, and the first one for the initial model (of several tasks: all).

        Raises:
            FederationError: The method needs more sites or rounds, sends what the job's noise does not cover, trains at
                a server that has no good data, or needs more than the job's secure sums.
        """
        self.upload.check(self.method, len(self._drawn()) if self.job.secure_sums else len(self.state.sites))
        check_possible(self.job, self.method, self.state.sites)
        if self.method.server.update is not None:
            state = self.state
            self.own = open_own(
                self.job, self._find_data, start_weights=self.start_weights, sites=len(state.numbers), kept=state.kept
            )
        sites, resumed = self.state.sites, bool(self.state.profiles)  # a resume needs all of its sites
        least = len(sites) if resumed or self.method.requires.pooled else self.needed(sites)
        self._admission = Admission(
            self.job, self.method, sites, least=least, file=self.start_weights, upload=self.upload
        )
        asked = sites if self.method.requires.multi_task else sites[:1]
        return self._enrol_messages(sites, () if resumed else asked)

    def _enrol_messages(self, sites: Sequence[str], initial: Collection[str]) -> dict[str, Message]:
        assert self._admission is not None
        self._admission.givers = set(initial)
        return {site: Message({**self._header(site), "send_initial": site in initial}) for site in sites}

    def enrolled(self, replies: Mapping[str, Message], failures: Mapping[str, str] | None = None) -> dict[str, Message]:
        """Check each profile by itself, then that they fit together, and start from the first site's weights.

        A site that has not enrolled well, or not as the job or most sites, is left out of a new run where the job's
        ``min_sites`` are there without it.

        Returns:
            What is still to be asked, where the site that was to give the weights is left out; nothing once the run
            has begun.

        Raises:
            FederationError: Too few sites are left, or they differ and no majority says which are wrong.
        """
        assert self._admission is not None
        self.left_out = self._admission.left_out
        self._admission.take(replies, failures or {})
        self.state.sites = self._admission.sites
        if not self.state.profiles and self.state.sites[0] not in self._admission.givers:
            return self._enrol_messages(self.state.sites[:1], self.state.sites[:1])
        self._begin(self._admission)
        self._admission = None
        return {}

    def _begin(self, entered: Admission) -> None:
        """Compare the profiles, with one another and with those of the run's beginning, and note what they say."""
        profiles = entered.profiles
        partitions = {site: entered.found[site].partition for site in self.state.sites}
        if self.own is not None:
            self.own.check_beside(profiles)
            self.own.check_as_before(self.state.own)
            self.state.own = profile_header(self.own.profile)
        if self.state.profiles:
            check_as_before(self.state.profiles, profiles)
        else:
            self.state.profiles = profiles
            self.state.partition = partitions[self.state.sites[0]]
            given = {site: entered.found[site].pieces for site in self.state.sites}
            self.state.models = initial_models(self.method, self.state.partition, self.state.sites, given)
            self.state.aggregator = self.method.server.aggregator.init(
                self.state.partition, self.state.models, list(profiles.values())
            )
            facts = self._tasks() | {"start": profiles[self.state.sites[0]].start}
            facts |= {"left_out": entered.left_out} if entered.left_out else {}
            facts |= self.upload.facts()
            write_json(self.folder / "run.json", describe(self.job, self.method, self.state.sites, facts))
        point_latest_to(self.folder)

    def first_metric(self, site: str) -> Metric:
        """Return the metric that selects a site's best model."""
        return task_of(self.job, self.state.profiles[site].card).metrics[0]

    def _tasks(self) -> dict[str, Any]:
        """Return the sites' cards and the metrics of each kind of task, for whoever reads the run."""
        cards = {site: self.state.profiles[site].card for site in self.state.sites}
        metrics = {card.kind: task_of(self.job, card).metrics for card in cards.values()}
        return {
            "cards": {site: card.to_json() for site, card in cards.items()},
            "metrics": {kind: [metric.to_json() for metric in rows] for kind, rows in metrics.items()},
        }

    # ---- rounds

    def round_messages(self) -> dict[str, Message]:
        """Return, for the sites that the current round asks, each one's own message."""
        self._asking = Asking(self._drawn())
        messages = self._deliveries(self._asking.sites, self.state.models)
        samples = {site: profile.samples for site, profile in self.state.profiles.items()}
        besides = self.upload.begin(self.state.round, self._asking.sites, samples)
        for message in messages.values():
            message.header.update(besides)
        return messages

    def unmask_messages(self, replies: Mapping[str, Message], failures: Mapping[str, str]) -> dict[str, Message]:
        """Return what to ask where sums are secure, of the sites whose masked updates are valid; else nothing.

        Raises:
            FederationError: Fewer valid updates than the round needs.
        """
        if not self.upload.to_unmask:
            return {}
        self._asking.taken = updates, _ = self._enough(replies, failures, time.perf_counter() - self._asking.since)
        return self.upload.unmask_messages({update.site: self._header(update.site) for update in updates})

    def unmasked(self, replies: Mapping[str, Message], failures: Mapping[str, str]) -> None:
        """Take what sites have opened of the masks."""
        self.upload.unmasked(replies, failures)

    def _drawn(self) -> list[str]:
        """Return the sites that the current round asks."""
        seed = self.job.open_bundle().training.seed
        return self.job.drawn(self.state.sites, self.state.round, seed, least=self.method.requires.min_sites)

    def finish_messages(self) -> dict[str, Message]:
        """Return every site's last delivery."""
        return self._deliveries(self.state.sites, self._delivered())

    def _delivered(self) -> Models:
        """Return the models as the method delivers them at the end."""
        finish = self.method.server.finish
        return finish(self.state.aggregator, self.state.models) if finish else self.state.models

    def _deliveries(self, sites: Sequence[str], models: Models) -> dict[str, Message]:
        self._asking.since = time.perf_counter()
        return deliveries(self.job, self.method, self.folder.name, self.state, models, sites)

    def note_reply(self, site: str, reply: Message) -> dict[str, Any]:
        """Record a reply as soon as it is there, once; return the record."""
        sent = Message({}, self.state.models.of(site), dict(self.state.models.broadcast))
        return self.round_log.note(site, reply, sent, self.state.partition, round=self.state.round)

    def check_update(self, site: str, reply: Message) -> Update:
        """Turn a reply into an update.

        Raises:
            RejectedUpdate: It is of another round, misshapen, not finite, too large, or of a wrong sample count.
        """
        samples = update_checks.check_header(
            reply.header, round=self.state.round, largest_samples=self.state.profiles[site].samples
        )
        sent, shared = self.state.models.of(site), self.state.models.shared
        return self.upload.take(site, self.state.round, reply, sent, shared, samples=samples, method=self.method)

    def finish_round(self, replies: Mapping[str, Message], failures: Mapping[str, str]) -> dict[str, Any]:
        """Check, aggregate, train where the method does so at the server, keep state and records.

        Returns:
            The aggregation's record.

        Raises:
            FederationError: Fewer valid updates than the round needs, or the server cannot train.
        """
        wall = time.perf_counter() - self._asking.since
        updates, rejected = self._asking.taken or self._enough(replies, failures, wall)
        started = time.perf_counter()
        report_progress("aggregating")
        counted = self.upload.combine(updates, self.state.models.shared)
        result = self.method.server.aggregator.apply(
            self.state.aggregator, self.state.partition, self.state.models, counted
        )
        seconds = time.perf_counter() - started
        result, trained = self._train(result)
        self.state.aggregator, self.state.models = result.state, result.models
        record = {
            "kind": "aggregation",
            "round": self.state.round,
            "seconds": seconds,
            "seconds_wall": wall,
            "rejected": [{"site": site, "reason": reason} for site, reason in rejected.items()],
            **({"drawn": self._asking.sites} if len(self._asking.sites) < len(self.state.sites) else {}),
            **self.upload.about(updates),
            **trained,
            **self.round_log.spent(),
            **result.report,
        }
        self.round_log.close(record)
        self.state.answered |= {update.site: self.state.round for update in updates}
        self.state.round += 1
        self._save()
        return record

    def _enough(
        self, replies: Mapping[str, Message], failures: Mapping[str, str], wall: float
    ) -> tuple[list[Update], dict[str, str]]:
        """Return the valid updates of a round, and why others are rejected.

        Raises:
            FederationError: They are fewer than the round needs.
        """
        silent = {site: "no answer" for site in self._asking.sites if site not in {*replies, *failures}}
        updates, rejected = self._valid(replies, {**failures, **silent}, wall)
        if len(updates) < (needed := self.needed(self._asking.sites)):
            reasons = "; ".join(f"{site}: {reason}" for site, reason in rejected.items())
            raise FederationError(
                f"round {self.state.round + 1} has {len(updates)} valid updates and needs {needed}: {reasons}"
            )
        return updates, rejected

    def _valid(
        self, replies: Mapping[str, Message], failures: Mapping[str, str], wall: float
    ) -> tuple[list[Update], dict[str, str]]:
        updates, rejected = [], dict(failures)
        for site in site_order(replies):
            if site not in self._asking.sites:
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
        rejected |= (outliers := update_checks.outlying_extras(updates))
        updates = [update for update in updates if update.site not in outliers]
        for site, reason in rejected.items():
            logger.warning("round %d: no update of %s: %s", self.state.round + 1, site, reason)
        return updates, rejected

    def _train(self, result: Aggregation) -> tuple[Aggregation, dict[str, Any]]:
        """Let the method train at the server, where it does; return what it made and the record's addition."""
        if self.own is None:
            return result, {}
        logger.info("round %d: %s trains at the server; the sites wait", self.state.round + 1, self.method.name)
        started = time.perf_counter()
        result, self.state.kept, losses = train_at_server(
            self.job,
            self.own,
            result,
            kept=self.state.kept,
            start_weights=self.start_weights,
            round=self.state.round,
            sites=len(self.state.sites),
        )
        return result, {"seconds_training": time.perf_counter() - started, "loss": losses}

    def finished(self, replies: Mapping[str, Message], failures: Mapping[str, str] | None = None) -> None:
        """Record the final models' metrics, and write the outsider's model and those that sites give to the result."""
        finals = []
        for site in site_order(replies):
            self.note_reply(site, replies[site])
            if final := replies[site].header.get("final"):
                finals.append({**final, "kind": "final", "site": site})
        for site, reason in (failures or {}).items():
            logger.warning("%s has not finished: %s", site, reason)
        record = write_models(
            self.job,
            self.method,
            self.state,
            self._delivered(),
            replies,
            self.folder / "server",
            file=self.start_weights,
        )
        self.round_log.close(*finals, record)
        self.round_log.write()

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
        self.state, self.round_log.records = ServerState.unpack(tensors, values, round=last + 1, folder=self.folder)
        change_description(self.folder, rounds=self.job.rounds, error=None)
        return True

    def _save(self) -> None:
        server_files(self.folder).save(self.state.round - 1, *self.state.pack(self.round_log.records))
        self.round_log.write()
        change_description(self.folder, **{ENDED: self.state.round})

    def _header(self, site: str) -> dict[str, Any]:
        return header_for(site, self.job, self.folder.name, self.state)
