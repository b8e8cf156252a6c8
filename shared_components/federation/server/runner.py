"""The server's side of a run without transport: enrol, send, check updates, aggregate, save."""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from shared_components.common.atomic import write_json
from shared_components.common.counted import counted, first_few
from shared_components.common.progress import report_progress
from shared_components.core.method import Method, Models, Update, load_method, site_order
from shared_components.federation.messages import FederationError, Job, Message, RejectedUpdate, Reply
from shared_components.federation.messages.stored import Inbox
from shared_components.federation.messages.wire_format import pack_models
from shared_components.federation.runs import run_folder
from shared_components.federation.runs.store import RECORDS
from shared_components.federation.secure_sums.identity import Project
from shared_components.federation.server import update_checks
from shared_components.federation.server.client_sampling import sample_clients
from shared_components.federation.server.enrolment import Admission, check_as_before, check_possible, profile_header
from shared_components.federation.server.published_models import task_of, write_models
from shared_components.federation.server.received_updates import upload_of
from shared_components.federation.server.state import RoundLog, ServerState, deliveries, header_for
from shared_components.federation.server.training import FindSite, ServerTraining

logger = logging.getLogger(__name__)


@dataclass
class OpenRound:
    """The current round: the sites that it asks, and the state of their updates."""

    sites: list[str] = field(default_factory=list)
    messages: dict[str, Message] = field(default_factory=dict)
    since: float = field(default_factory=time.perf_counter)  # when the messages were sent
    outcomes: dict[str, tuple[Reply, Update | RejectedUpdate]] = field(default_factory=dict)  # of each checked reply
    updates: tuple[list[Update], dict[str, str]] | None = None  # valid and rejected ones before a sum is unmasked


class ServerRunner:
    """The server of one run. `protocol.conduct` calls the methods in order, after `resume` if the run may exist."""

    def __init__(
        self,
        job: Job,
        sites: Sequence[str],  # in any order
        folder: Path,  # of the run, see `run_folder.open_run`; it has all that a resume needs
        *,
        find_data: FindSite | None = None,  # data of a server that trains
        start_weights: Path | None = None,  # file of the first weights, if the server trains and ``start`` is ``file``
        project: Project | None = None,  # root certificate of the kit, which verifies the sites' keys of secure sums
    ) -> None:
        self.job, self.folder = job, folder
        self.method: Method = load_method(job.method, **job.arguments)
        ordered = site_order(sites)
        self.state = ServerState(ordered, {site: number for number, site in enumerate(ordered)})
        self.upload = upload_of(job, folder.name, project)
        self.round_log = RoundLog(folder / "server" / RECORDS, self.upload)
        self.training = ServerTraining(job, find_data, start_weights)
        self.left_out: dict[str, str] = {}  # reason for each site that the enrolment left out
        self._admission: Admission | None = None  # until the run begins
        self.inbox, self._open_round = Inbox(folder / "server" / "updates"), OpenRound()

    def wanted(self, asked: Collection[str]) -> int:
        """Return the number of answers that the job needs: its ``min_sites``, or all."""
        return min(self.job.min_sites or len(asked), len(asked))

    def needed(self, asked: Collection[str]) -> int:
        """Return the number of updates that job, method and upload need in a round."""
        return max(self.wanted(asked), self.method.requires.min_sites, self.upload.least)

    @property
    def records(self) -> list[dict[str, Any]]:
        return self.round_log.records

    @property
    def last_record(self) -> dict[str, Any]:
        """The record of the last aggregation."""
        return next(record for record in reversed(self.records) if record["kind"] == "aggregation")

    def enrol_messages(self) -> dict[str, Message]:
        """Ask every site for its profile, and the first site (with several tasks, all) for its initial weights.

        FederationError: too few sites or rounds, a method that does not work with noise or secure sums, or a server
        that must train and has no valid data.
        """
        self.upload.check(self.method, self._sampled() if self.job.secure_sums else self.state.sites)
        check_possible(self.job, self.method, self.state.sites)
        if self.method.server.update is not None:
            self.training.open(sites=len(self.state.numbers), kept=self.state.kept)
        sites, resumed = self.state.sites, bool(self.state.profiles)
        least = len(sites) if resumed or self.method.requires.pooled else self.needed(sites)
        file = self.training.start_weights
        self._admission = Admission(self.job, self.method, sites, least=least, file=file)
        senders = sites if self.method.requires.multi_task else sites[:1]
        return self._enrol_messages(self._admission, sites, () if resumed else senders)

    def _enrol_messages(self, admission: Admission, sites: Sequence[str], senders: Sequence[str]) -> dict[str, Message]:
        admission.senders = set(senders)
        return {site: Message({**self._header(site), "send_initial": site in senders}) for site in sites}

    def enrolled(self, replies: Mapping[str, Reply], failures: Mapping[str, str] | None = None) -> dict[str, Message]:
        """Check the enrolments, leave out sites that do not fit, and begin the run.

        Return the next messages if the site that should send the weights was left out; none once the run has begun.
        FederationError: too few sites are left, or the sites differ without a majority.
        """
        admission = self._admission
        assert admission is not None
        self.left_out = admission.left_out
        admission.take(replies, failures or {}, also=self.upload.enrol)
        self.state.sites = admission.sites
        if not self.state.profiles and self.state.sites[0] not in admission.senders:
            return self._enrol_messages(admission, self.state.sites[:1], self.state.sites[:1])
        if (data := self.training.data) is not None:
            data.check_beside(admission.profiles)
            data.check_as_before(self.state.own)
            self.state.own = profile_header(data.profile)
        if self.state.profiles:
            check_as_before(self.state.profiles, admission.profiles)
        else:
            self._begin(admission)
        run_folder.point_latest_to(self.folder)
        self._admission = None
        return {}

    def _begin(self, admission: Admission) -> None:
        """Set the state of a new run, and write run.json."""
        state, method = self.state, self.method
        state.profiles = admission.profiles
        state.partition, state.models = admission.initial_models()
        profiles = list(state.profiles.values())
        try:
            state.aggregator = method.server.aggregator.init(state.partition, state.models, profiles)
        except ValueError as error:
            raise FederationError(f"{method.name}: {error}") from error
        metrics = {profile.card.kind: task_of(self.job, profile.card).metrics for profile in profiles}
        facts = {
            "cards": {profile.site: profile.card.to_json() for profile in profiles},
            "metrics": {kind: [metric.to_json() for metric in rows] for kind, rows in metrics.items()},
            "start": profiles[0].start,
            **({"left_out": self.left_out} if self.left_out else {}),
            **self.upload.facts(),
        }
        write_json(self.folder / "run.json", run_folder.describe(self.job, method, state.sites, facts))

    def round_messages(self) -> dict[str, Message]:
        """Return a message for each site that the current round asks."""
        self._open_round = OpenRound(self._sampled())
        self.inbox.empty()  # files of a server that was killed
        sites, samples = self._open_round.sites, {site: p.samples for site, p in self.state.profiles.items()}
        if len(sites) < (total := len(self.state.sites)):
            logger.info("round %d asks %d of %d sites (client_fraction)", self.state.round + 1, len(sites), total)
        messages = self._deliveries(sites, pack_models(self.state.models, self.job.wire))
        section = self.upload.begin(self.state.round, sites, samples)
        for message in messages.values():
            message.header.update(section)
        return messages

    def unmask_messages(self, replies: Mapping[str, Reply], failures: Mapping[str, str]) -> dict[str, Message]:
        """With secure sums, return a message for each site with a valid masked update; FederationError if too few."""
        if not self.upload.to_unmask:
            return {}
        self._open_round.updates = updates, _ = self._enough(replies, failures)
        return self.upload.unmask_messages({update.site: self._header(update.site) for update in updates})

    def unmasked(self, replies: Mapping[str, Reply], failures: Mapping[str, str]) -> None:
        """Take the shares that the sites have opened."""
        self.upload.unmasked(replies, failures)

    def _sampled(self) -> list[str]:
        seed, least = self.job.open_bundle().training.seed, self.method.requires.min_sites
        fraction = self.job.client_fraction
        return sample_clients(self.state.sites, self.state.round, fraction=fraction, seed=seed, least=least)

    def finish_messages(self) -> dict[str, Message]:
        """Return every site's message with the final models."""
        return self._deliveries(self.state.sites, self._final_models)

    @cached_property
    def _final_models(self) -> Models:
        """The models after the method's ``finish``; the last round's state file has its inputs."""
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
        """Record a reply when it arrives, once; return the record."""
        sent = self._open_round.messages.get(site, Message({}))
        return self.round_log.note(site, reply, sent, self.state.partition, round=self.state.round)

    def judge(self, site: str, reply: Reply) -> Update | RejectedUpdate:
        """Return the update of a reply to the round, or the reason for its rejection; each reply is checked once."""
        known = self._open_round.outcomes.get(site)
        if known is None or known[0] is not reply:
            try:
                known = reply, self.check_update(site, reply)
            except RejectedUpdate as error:
                known = reply, error
            self._open_round.outcomes[site] = known
        return known[1]

    def check_update(self, site: str, reply: Reply) -> Update:
        """Return the update of a reply to the round; RejectedUpdate if it must not be aggregated."""
        state = self.state
        largest = state.profiles[site].samples
        samples = update_checks.check_header(reply.header, round=state.round, largest_samples=largest)
        return self.upload.take(site, state.round, reply, state.models, samples=samples, method=self.method)

    def finish_round(self, replies: Mapping[str, Reply], failures: Mapping[str, str]) -> dict[str, Any]:
        """Aggregate the valid updates, train if the method trains at the server, and save state and records.

        Return the aggregation's record. FederationError: fewer valid updates than needed, or the training fails.
        """
        asked, wall, state = self._open_round.sites, time.perf_counter() - self._open_round.since, self.state
        updates, rejected = self._open_round.updates or self._enough(replies, failures)
        started = time.perf_counter()
        report_progress("aggregating")
        combined = self.upload.combine(updates, state.models.shared)
        result = self.method.server.aggregator.apply(state.aggregator, state.partition, state.models, combined)
        seconds = time.perf_counter() - started
        trained: dict[str, Any] = {}
        if self.training.data is not None:
            sites = len(state.sites)
            result, state.kept, trained = self.training.run(result, kept=state.kept, round=state.round, sites=sites)
        state.aggregator, state.models = result.state, result.models
        record = {
            "kind": "aggregation",
            "round": state.round,
            "seconds": seconds,
            "seconds_wall": wall,
            "rejected": [{"site": site, "reason": reason} for site, reason in rejected.items()],
            **({"drawn": asked} if len(asked) < len(state.sites) else {}),
            **self.round_log.about(updates),
            **trained,
            **result.report,
        }
        self.round_log.close(record)
        self.inbox.empty()
        self._open_round.outcomes.clear()  # as large as the models
        state.answered |= {update.site: state.round for update in updates}
        state.round += 1
        self._save()
        return record

    def _enough(self, replies: Mapping[str, Reply], failures: Mapping[str, str]) -> tuple[list[Update], dict[str, str]]:
        """Return the valid updates of a round, and reasons for rejections; FederationError if there are too few."""
        asked = self._open_round.sites
        silent = {site: "no answer" for site in asked if site not in {*replies, *failures}}
        updates, rejected = self._valid(replies, {**failures, **silent})
        for site, reason in rejected.items():
            logger.warning("round %d: no update of %s: %s", self.state.round + 1, site, reason)
        if len(updates) < (needed := self.needed(asked)):
            reasons = first_few((f"{site}: {reason}" for site, reason in rejected.items()), "; ")
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
            if not record.get("noisy"):  # the record of a noisy update has no seconds
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
        """Record the final metrics; write the model for held-out sites and the models that sites publish."""
        finals = []
        for site in site_order(replies):
            self.note_reply(site, replies[site])
            if final := replies[site].header.get("final"):
                finals.append({**final, "kind": "final", "site": site})
        for site, reason in (failures or {}).items():
            logger.warning("%s has not finished: %s", site, reason)
        folder, file = self.folder / "server", self.training.start_weights
        record = write_models(self.job, self.method, self.state, self._final_models, replies, folder, file=file)
        self.inbox.empty()
        self.round_log.close(*finals, record)
        self.round_log.write()

    def note_failure(self, reason: str, key: str = "error") -> bool:
        """Write why the run failed (with key ``stopped``, why it was stopped) into run.json, if the file exists."""
        return run_folder.change_description(self.folder, **{key: reason})

    def resume(self, after: int | None = None) -> bool:
        """Load the newest intact state with its records, or the state ``after`` so many rounds; return if there is one.

        A copy of a run can have a state without its records.
        """
        check = self.round_log.restore
        if (loaded := run_folder.state_to_resume(self.folder, self.job.rounds, after=after, check=check)) is None:
            return False
        last, tensors, values = loaded
        self.state = ServerState.unpack(tensors, values, round=last + 1)
        run_folder.change_description(self.folder, rounds=self.job.rounds, error=None, stopped=None)
        return True

    def _save(self) -> None:
        self.round_log.write()  # before the state, which has its length
        files = run_folder.server_files(self.folder, every=self.job.checkpoint_every)
        self.state.save(files, self.round_log.mark)
        run_folder.change_description(self.folder, **{run_folder.ENDED: self.state.round})

    def _header(self, site: str) -> dict[str, Any]:
        return header_for(site, self.job, self.folder.name, self.state)
