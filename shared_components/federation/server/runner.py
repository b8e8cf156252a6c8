"""The server's side of one run: enrol, send, check updates, aggregate, save its state. No transport, no FLARE."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from shared_components.common.atomic import write_json
from shared_components.common.counted import counted
from shared_components.common.progress import report_progress
from shared_components.core.card import Metric
from shared_components.core.method import Method, Models, Update, load_method, site_order
from shared_components.federation.messages import FederationError, Job, Message, RejectedUpdate, Reply
from shared_components.federation.messages.stored import Inbox
from shared_components.federation.messages.wire_format import pack_models
from shared_components.federation.runs.run_folder import (
    ENDED,
    change_description,
    describe,
    point_latest_to,
    server_files,
    state_to_resume,
)
from shared_components.federation.runs.store import RECORDS
from shared_components.federation.secure_sums.identity import Project
from shared_components.federation.server import update_checks
from shared_components.federation.server.admission import Admission, check_possible
from shared_components.federation.server.client_sampling import sample_clients
from shared_components.federation.server.enrolment import check_as_before, profile_header
from shared_components.federation.server.published_models import task_of, write_models
from shared_components.federation.server.round_log import RoundLog
from shared_components.federation.server.state import ServerState, deliveries, header_for
from shared_components.federation.server.training import FindSite, ServerTraining
from shared_components.federation.server.upload import upload_of

logger = logging.getLogger(__name__)


@dataclass
class OpenRound:
    """The round under way: its sites and messages, since when, and the outcome of each reply that was checked.

    With secure sums it also has the (valid, rejected) updates before the masks are removed.
    """

    sites: list[str] = field(default_factory=list)
    messages: dict[str, Message] = field(default_factory=dict)
    since: float = field(default_factory=time.perf_counter)
    outcomes: dict[str, tuple[Reply, Update | RejectedUpdate]] = field(default_factory=dict)
    updates: tuple[list[Update], dict[str, str]] | None = None


class ServerRunner:
    """One run of one job. Everything a resume needs is in the files of ``folder``.

    Call ``resume`` first where a run may be there; `protocol.conduct` knows the order of the rest.

    Args:
        job: What to run.
        sites: Names of the sites, in any order.
        folder: The run's folder, see `run_folder.open_run`.
        find_data: Finds the data of a server that trains; called with the job and the number after the last site's.
        start_weights: The file of the first weights, needed where the server trains and ``start`` is ``file``.
        project: The server's startup kit, which vouches for the sites' keys of secure sums; None without a kit.
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
        self.job, self.folder = job, folder
        self.method: Method = load_method(job.method, **job.arguments)
        ordered = site_order(sites)
        self.state = ServerState(ordered, {site: number for number, site in enumerate(ordered)})
        self.upload = upload_of(job, folder.name, project)
        self.round_log = RoundLog(folder / "server" / RECORDS, self.upload)
        self.training = ServerTraining(job, find_data, start_weights)
        self.left_out: dict[str, str] = {}  # sites that the enrolment has excluded, and why
        self._admission: Admission | None = None  # until the run begins
        self._inbox, self._open_round = Inbox(folder / "server" / "updates"), OpenRound()

    def wanted(self, asked: Collection[str]) -> int:
        """Return how many answers the job needs: its ``min_sites``, or all."""
        return min(self.job.min_sites or len(asked), len(asked))

    def needed(self, asked: Collection[str]) -> int:
        """Return how many updates a round needs, by the job, the method and the upload."""
        return max(self.wanted(asked), self.method.requires.min_sites, self.upload.least)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of all rounds so far."""
        return self.round_log.records

    @property
    def last_record(self) -> dict[str, Any]:
        """The record of the last aggregation."""
        return next(record for record in reversed(self.records) if record["kind"] == "aggregation")

    # ---- enrolment

    def enrol_messages(self) -> dict[str, Message]:
        """Ask every site for its profile, and the first one (of several tasks: all) for the initial weights.

        Raises:
            FederationError: The job cannot succeed: too few sites or rounds, a method that its noise or its secure sums
                do not cover, or a server that must train and has no good data.
        """
        self.upload.check(self.method, len(self._sampled()) if self.job.secure_sums else len(self.state.sites))
        check_possible(self.job, self.method, self.state.sites)
        if self.method.server.update is not None:
            self.training.open(sites=len(self.state.numbers), kept=self.state.kept)
        sites, resumed = self.state.sites, bool(self.state.profiles)  # a resume needs all of its sites
        least = len(sites) if resumed or self.method.requires.pooled else self.needed(sites)
        self._admission = Admission(
            self.job, self.method, sites, least=least, file=self.training.start_weights, upload=self.upload
        )
        asked = sites if self.method.requires.multi_task else sites[:1]
        return self._enrol_messages(sites, () if resumed else asked)

    def _enrol_messages(self, sites: Sequence[str], initial: Collection[str]) -> dict[str, Message]:
        assert self._admission is not None
        self._admission.givers = set(initial)
        return {site: Message({**self._header(site), "send_initial": site in initial}) for site in sites}

    def enrolled(self, replies: Mapping[str, Reply], failures: Mapping[str, str] | None = None) -> dict[str, Message]:
        """Check every profile, then that they fit together, and begin from the first site's weights.

        A new run leaves out a site whose enrolment is bad, or unlike most others', if ``min_sites`` remain.

        Returns:
            The next messages, where the site that was asked for the weights is left out; none once the run has begun.

        Raises:
            FederationError: Too few sites are left, or they differ and no majority shows which are wrong.
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

    def _begin(self, admission: Admission) -> None:
        """Compare the profiles with the server's data and with a resumed run's; set the state of a new run."""
        profiles = admission.profiles
        if (data := self.training.data) is not None:
            data.check_beside(profiles)
            data.check_as_before(self.state.own)
            self.state.own = profile_header(data.profile)
        if self.state.profiles:
            check_as_before(self.state.profiles, profiles)
        else:
            facts = admission.begin(self.state)
            write_json(self.folder / "run.json", describe(self.job, self.method, self.state.sites, facts))
        point_latest_to(self.folder)

    def first_metric(self, site: str) -> Metric:
        """Return the metric that selects a site's best model."""
        return task_of(self.job, self.state.profiles[site].card).metrics[0]

    # ---- rounds

    def round_messages(self) -> dict[str, Message]:
        """Return a message for each site that the current round asks."""
        self._open_round = OpenRound(self._sampled())
        self._inbox.empty()  # what a killed server has left
        sites, samples = self._open_round.sites, {site: p.samples for site, p in self.state.profiles.items()}
        if len(sites) < (all_ := len(self.state.sites)):
            logger.info("round %d asks %d of %d sites (client_fraction)", self.state.round + 1, len(sites), all_)
        messages = self._deliveries(sites, pack_models(self.state.models, self.job.wire))
        more = self.upload.begin(self.state.round, sites, samples)
        for message in messages.values():
            message.header.update(more)
        return messages

    def unmask_messages(self, replies: Mapping[str, Reply], failures: Mapping[str, str]) -> dict[str, Message]:
        """With secure sums return a message for each site whose masked update is valid; else nothing.

        Raises:
            FederationError: Fewer valid updates than the round needs.
        """
        if not self.upload.to_unmask:
            return {}
        self._open_round.updates = updates, _ = self._enough(replies, failures)
        return self.upload.unmask_messages({update.site: self._header(update.site) for update in updates})

    def unmasked(self, replies: Mapping[str, Reply], failures: Mapping[str, str]) -> None:
        """Take the sites' shares of the masks."""
        self.upload.unmasked(replies, failures)

    def _sampled(self) -> list[str]:
        seed, least = self.job.open_bundle().training.seed, self.method.requires.min_sites
        fraction = self.job.client_fraction
        return sample_clients(self.state.sites, self.state.round, fraction=fraction, seed=seed, least=least)

    def finish_messages(self) -> dict[str, Message]:
        """Return every site's last delivery."""
        return self._deliveries(self.state.sites, self._delivered)

    @cached_property
    def _delivered(self) -> Models:
        """The models as the method delivers them at the end; what they are made of is in the last round's file."""
        if self.method.server.finish is None:
            return self.state.models
        models = self.method.server.finish(self.state.aggregator, self.state.models)
        self.state.aggregator = {}
        return models

    def _deliveries(self, sites: Sequence[str], models: Models) -> dict[str, Message]:
        self._open_round.since = time.perf_counter()
        self._open_round.messages = deliveries(self.job, self.method, self.folder.name, self.state, models, sites)
        return self._open_round.messages

    def note_reply(self, site: str, reply: Reply) -> dict[str, Any]:
        """Record a reply as soon as it arrives, once; return the record."""
        sent = self._open_round.messages.get(site, Message({}))
        return self.round_log.note(site, reply, sent, self.state.partition, round=self.state.round)

    def keep(self, task: str, site: str, reply: Reply) -> Reply:
        """Return a reply as it is kept until its task ends, which may be on the disk."""
        return self._inbox.keep(task, site, reply)

    def judge(self, site: str, reply: Reply) -> Update | RejectedUpdate:
        """Return the update of a reply to the round, or why it is rejected; a reply is checked once."""
        known = self._open_round.outcomes.get(site)
        if known is None or known[0] is not reply:
            try:
                known = reply, self.check_update(site, reply)
            except RejectedUpdate as error:
                known = reply, error
            self._open_round.outcomes[site] = known
        return known[1]

    def check_update(self, site: str, reply: Reply) -> Update:
        """Turn a reply into an update; RejectedUpdate says what is wrong with it."""
        samples = update_checks.check_header(
            reply.header, round=self.state.round, largest_samples=self.state.profiles[site].samples
        )
        sent, shared = self.state.models.of(site), self.state.models.shared
        return self.upload.take(site, self.state.round, reply, sent, shared, samples=samples, method=self.method)

    def finish_round(self, replies: Mapping[str, Reply], failures: Mapping[str, str]) -> dict[str, Any]:
        """Check and aggregate the updates, train where the method does so at the server, save state and records.

        Returns:
            The aggregation's record.

        Raises:
            FederationError: Fewer valid updates than the round needs, or the server cannot train.
        """
        asked, wall = self._open_round.sites, time.perf_counter() - self._open_round.since
        updates, rejected = self._open_round.updates or self._enough(replies, failures)
        started = time.perf_counter()
        report_progress("aggregating")
        counted = self.upload.combine(updates, self.state.models.shared)
        result = self.method.server.aggregator.apply(
            self.state.aggregator, self.state.partition, self.state.models, counted
        )
        seconds = time.perf_counter() - started
        trained: dict[str, Any] = {}
        if self.training.data is not None:
            sites, state = len(self.state.sites), self.state
            result, state.kept, trained = self.training.run(result, kept=state.kept, round=state.round, sites=sites)
        self.state.aggregator, self.state.models = result.state, result.models
        record = {
            "kind": "aggregation",
            "round": self.state.round,
            "seconds": seconds,
            "seconds_wall": wall,
            "rejected": [{"site": site, "reason": reason} for site, reason in rejected.items()],
            **({"drawn": asked} if len(asked) < len(self.state.sites) else {}),
            **self.upload.about(updates),
            **trained,
            **self.round_log.spent(),
            **result.report,
        }
        self.round_log.close(record)
        self._inbox.empty()
        self._open_round.outcomes.clear()  # as large as the models
        self.state.answered |= {update.site: self.state.round for update in updates}
        self.state.round += 1
        self._save()
        return record

    def _enough(self, replies: Mapping[str, Reply], failures: Mapping[str, str]) -> tuple[list[Update], dict[str, str]]:
        """Return the valid updates of a round, and why others are rejected.

        Raises:
            FederationError: Fewer are valid than the round needs.
        """
        asked = self._open_round.sites
        silent = {site: "no answer" for site in asked if site not in {*replies, *failures}}
        updates, rejected = self._valid(replies, {**failures, **silent})
        for site, reason in rejected.items():
            logger.warning("round %d: no update of %s: %s", self.state.round + 1, site, reason)
        if len(updates) < (needed := self.needed(asked)):
            reasons = "; ".join(f"{site}: {reason}" for site, reason in rejected.items())
            valid = counted(len(updates), "valid update")
            raise FederationError(f"round {self.state.round + 1} has {valid} and needs {needed}: {reasons}")
        return updates, rejected

    def _valid(self, replies: Mapping[str, Reply], rejected: dict[str, str]) -> tuple[list[Update], dict[str, str]]:
        updates, wall = [], time.perf_counter() - self._open_round.since
        for site in site_order(replies):
            if site not in self._open_round.sites:
                rejected[site] = "the round did not ask it"
                continue
            record = self.note_reply(site, replies[site])
            if not record.get("noisy"):  # whose record has no seconds
                seconds = record.setdefault("seconds", {})
                seconds["waiting"] = max(0.0, wall - seconds.get("total", 0.0))
            outcome = self.judge(site, replies[site])
            if isinstance(outcome, RejectedUpdate):
                rejected[site] = str(outcome)
            else:
                updates.append(outcome)
        rejected |= (outliers := update_checks.outlying_extras(updates))
        return [update for update in updates if update.site not in outliers], rejected

    def finished(self, replies: Mapping[str, Reply], failures: Mapping[str, str] | None = None) -> None:
        """Record the final models' metrics, and write the model for unseen sites and the models that sites publish."""
        finals = []
        for site in site_order(replies):
            self.note_reply(site, replies[site])
            if final := replies[site].header.get("final"):
                finals.append({**final, "kind": "final", "site": site})
        for site, reason in (failures or {}).items():
            logger.warning("%s has not finished: %s", site, reason)
        folder, models = self.folder / "server", self._delivered
        record = write_models(
            self.job, self.method, self.state, models, replies, folder, file=self.training.start_weights
        )
        self._inbox.empty()
        self.round_log.close(*finals, record)
        self.round_log.write()

    def note_failure(self, reason: str, key: str = "error") -> bool:
        """Write why the run failed, or with the key `stopped` why it was stopped, into run.json if it exists."""
        return change_description(self.folder, **{key: reason})

    # ---- state

    def resume(self) -> bool:
        """Load the newest intact state; return whether there was one."""
        if (found := state_to_resume(self.folder, self.job.rounds)) is None:
            return False
        last, tensors, values = found
        self.state, self.round_log.records = ServerState.unpack(tensors, values, round=last + 1)
        change_description(self.folder, rounds=self.job.rounds, error=None, stopped=None)
        return True

    def _save(self) -> None:
        server_files(self.folder).save(self.state.round - 1, *self.state.pack(self.round_log.records))
        self.round_log.write()
        change_description(self.folder, **{ENDED: self.state.round})

    def _header(self, site: str) -> dict[str, Any]:
        return header_for(site, self.job, self.folder.name, self.state)
