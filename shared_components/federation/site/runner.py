"""A site's side of a run: enrol, train rounds, finish. No transport, no FLARE."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shared_components.common import machine
from shared_components.common.atomic import NotWritten, write_json
from shared_components.common.counted import counted
from shared_components.common.progress import report_progress
from shared_components.core import evaluation
from shared_components.core import training as local
from shared_components.core.feature_cache import FOLDER, open_cache
from shared_components.core.initial_weights import said, unused
from shared_components.core.partition import Pieces, Role, cut, fixed_hash, paste
from shared_components.core.site_conditioning import facts_of
from shared_components.core.streams import unseen_at_first
from shared_components.core.text.vectors import TextError
from shared_components.data.dataset import SampleDataset, collated
from shared_components.data.profile_items import ITEMS
from shared_components.data.samples import Sample, samples
from shared_components.data.site import Site, SiteError
from shared_components.federation.allowed_payload import Expected
from shared_components.federation.message_schema import REPLY
from shared_components.federation.messages import Job, Message, SiteRefusal, folder_name
from shared_components.federation.privacy.gaussian import Randomness
from shared_components.federation.progress import write_scalars
from shared_components.federation.secure_sums.identity import Identity
from shared_components.federation.server import outsider
from shared_components.federation.server.enrolment import wrong_kind
from shared_components.federation.site import disclosure, parse_request
from shared_components.federation.site.agreed_job import agreed_job, keep_agreed, site_folder
from shared_components.federation.site.disclosure import what_leaves
from shared_components.federation.site.local_round import LocalRound
from shared_components.federation.site.site_setup import SiteSetup, set_up_site
from shared_components.federation.site.state import Kept, keep_best, restore, save
from shared_components.federation.site.upload import Plain, upload_of
from shared_components.federation.store import RoundFiles
from shared_components.federation.wire_format import unpack_message

logger = logging.getLogger(__name__)

QUARANTINE = "quarantine.json"


class SiteRunner:
    """Answer the server's messages for one site.

    Args:
        name: Of the site in the federation.
        find_site: Called with the job and the site's number; returns the checked site description. A method that pools
            data (`Requires.pooled`) calls it with the other numbers, too.
        folder: Of all runs; the site's own folder is ``<folder>/<job>/<run>/<name>``.
        start_weights: The file of the first weights, where the job's ``start`` is ``file``.
        stop: Called before every batch; True ends the training with an error.
        random: Source of the noise of a job with ``privacy``; it must be secret, but in tests.
        identity: The site's startup kit, which vouches for its key of secure sums; None without a kit.
    """

    answered_before = False  # by any runner of this process; the first task's seconds include the process's start

    def __init__(
        self,
        name: str,
        *,
        find_site: Callable[[Job, int], Site],
        folder: Path,
        start_weights: Path | None = None,
        stop: Callable[[], bool] = lambda: False,
        random: Randomness = os.urandom,
        identity: Identity | None = None,
    ) -> None:
        self.name = name
        self._identity = identity
        self._find_site = find_site
        self._folder = folder
        self._start_weights = start_weights
        self._stop = stop
        self._random = random

    def answer(self, task: str, message: Message) -> Message:
        """Run one task.

        Args:
            task: ``enrol``, ``round``, ``unmask`` (secure sums alone) or ``finish``.
            message: Of the server; its header has ``job``, ``run``, ``round``, ``index`` (the site's place among the
                sites that take part), ``sites`` (their number), ``number`` and ``numbers`` (the same among all that
                were asked to enrol), ``send_initial`` (enrol), ``items`` (profile items of all sites, in order) and
                ``answered`` (the last round in which this site's update counted, or None).

        Returns:
            The reply. Its header has ``round``, ``seconds`` and ``memory_mb``; enrol: ``samples``, ``card``,
            ``items``, ``partition``, ``fixed``, ``prepared``, ``start``, ``sums_key``; round: ``samples``,
            ``loss``, ``metrics``; finish: ``metrics``, ``final``. With ``privacy`` it has what `message_schema.REPLY`
            declares as ``with_noise``.

        Raises:
            SiteRefusal: The site cannot take part; the sentence names it and the remedy.
        """
        handlers = {"enrol": self._enrol, "round": self._round, "unmask": self._unmask, "finish": self._finish}
        started = time.perf_counter()
        report_progress("starting")
        self._began = machine.process_start() if not SiteRunner.answered_before else started
        SiteRunner.answered_before = True
        try:
            message = parse_request.read(task, message)
            job = agreed_job(task, message.header, self._folder, site=self.name)
            site = self._find_site(job, message.header["number"])
            upload = self._upload(job, site, message.header["run"])
            reply = handlers[task](job, site, message, upload)
        except NotWritten as error:
            raise SiteRefusal(f"site {self.name}: {error}") from error
        except (SiteError, ValueError, FloatingPointError, KeyError) as error:
            text = error.args[0] if error.args else repr(error)
            raise SiteRefusal(text if self.name in str(text) else f"site {self.name}: {text}") from error
        reply.header["round"] = message.header["round"]
        reply.header.setdefault("seconds", {})["total"] = time.perf_counter() - self._began
        reply.header["memory_mb"] = machine.peak_memory_mb()
        reply = upload.strip(reply)
        header = {key: value for key, value in reply.header.items() if REPLY[key].withheld not in site.withhold}
        return replace(reply, header=header)

    def _enrol(self, job: Job, site: Site, message: Message, upload: Plain) -> Message:
        """Check the whole site before the first round, and return its profile."""
        header = message.header
        bench = set_up_site(job, site, start_weights=self._start_weights, sites=header["sites"])
        if refusal := wrong_kind(bench.method, bench.task.card):
            raise SiteRefusal(f"{site.path}: {refusal}")
        upload.check(bench.method, job.rounds - header["round"])
        self._say_what_leaves(bench, job, header["run"])
        self._say_start(bench)
        prepared = self._condition(bench, header)
        write_json(self._files(job, header["run"]).folder / QUARANTINE, _check_data(bench))
        self._say_unseen(bench, job, header["run"])
        dataset = self._dataset(bench, job, header["run"], "train")
        local.check_answers(bench.network, bench.task, bench.size)
        bench.task.add_randomness(collated([dataset[0]]), torch.Generator().manual_seed(0))  # the size fits the task
        self._say_batch(bench, len(dataset))
        profile: dict[str, Any] = {
            "samples": len(dataset),
            "card": bench.task.card.to_json(),
            "items": self._items(bench, dataset, header),
            "partition": bench.partition.to_json(),
            "fixed": fixed_hash(bench.network.state_dict(), bench.partition),
            "prepared": prepared,
            "start": {key: bench.start[key] for key in ("start", "sha256")},
        }
        roles = (Role.GLOBAL, Role.MIXED) if header["send_initial"] else ()
        pieces = cut(bench.network.state_dict(), bench.partition, *roles)
        profile |= upload.enrolment()
        keep_agreed(header, self._folder, site=self.name)
        return Message(profile, pieces)

    def _say_what_leaves(self, bench: SiteSetup, job: Job, run: str) -> None:
        """Write a report of what this job lets leave the site, before anything is sent."""
        due = Expected(bench.method, bench.task, bench.network.state_dict(), bench.partition)
        report = what_leaves(job, due, publish=bench.site.publish, withhold=bench.site.withhold)
        path = self._files(job, run).folder / disclosure.FILE
        write_json(path, report.to_json())
        logger.info("site %s: %s; %s has the rest", self.name, report.sentence(), path)

    def _say_unseen(self, bench: SiteSetup, job: Job, run: str) -> None:
        """Warn of videos to score that show nothing to follow where they begin."""
        if bench.task.prompting is None:
            return
        for split in ("validation", "test"):
            chosen = self._samples(bench, job, run, split) if bench.site.split.get(split) else []
            if found := unseen_at_first(bench.task, chosen):
                more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
                logger.warning(
                    "site %s: split %s: video %s begins with a frame (%d) that shows no object%s: none is followed, "
                    "and all is predicted empty; leave out the frames before the first object",
                    self.name, split, found[0].video, found[0].index, more,
                )  # fmt: skip

    def _say_start(self, bench: SiteSetup) -> None:
        if warning := unused(bench.start["start"], self._start_weights):
            logger.warning("site %s: %s", self.name, warning)
        if bench.start["sha256"]:
            fresh = ", ".join(bench.start["fresh"]) or "nothing"
            logger.info("site %s begins from %s; from the seed: %s", self.name, said(bench.start), fresh)

    def _say_batch(self, bench: SiteSetup, samples: int) -> None:
        """Name a site with fewer samples than a batch, or refuse it by ValueError, see `Training.for_samples`."""
        training = bench.bundle.training
        if samples < training.batch_size:
            size, said = (
                training.for_samples(samples).batch_size,
                f"{counted(samples, 'training sample')}, fewer than a batch of",
            )
            how = f"batches of {size}" if size < training.batch_size else "some come twice in it"
            logger.warning("site %s has %s %d: %s", self.name, said, training.batch_size, how)

    def _items(self, bench: SiteSetup, dataset: SampleDataset, header: Mapping[str, Any]) -> dict[str, Any]:
        """Measure the profile items that the method asks for and the site publishes."""
        method, site = bench.method, bench.site
        facts = facts_of(site, number=header["number"], count=header["numbers"])
        if refused := sorted(method.requires.items - set(site.publish)):
            raise SiteRefusal(
                f"{site.path}: site {self.name} does not publish {refused[0]!r}, which {method.name} needs "
                f"({ITEMS[refused[0]].words}); add it to 'publish', or change the job's method or arguments"
            )
        asked = (method.requires.items | method.requires.optional_items) & set(site.publish)
        try:
            return {
                name: own(facts) if (own := method.local.items.get(name)) else ITEMS[name].measure(dataset, site.text)
                for name in sorted(asked)
            }
        except TextError as error:
            raise SiteRefusal(f"{site.path}: site {self.name}: {error}") from error

    def _round(self, job: Job, site: Site, message: Message, upload: Plain) -> Message:
        message = unpack_message(message, job.wire)
        header, round = message.header, message.header["round"]
        if (answer := upload.before_round(message)) is not None:
            return answer
        bench, files, kept = self._take_up(job, site, message)
        upload.before_training(bench)
        clock = _Clock(self._began)
        clock.mark("starting")
        validation = self._dataset(bench, job, header["run"], "validation")
        with bench.deployed(kept.memory):
            metrics = evaluation.quick(bench.network, bench.task, validation)
            clock.mark("validating")
            best = keep_best(bench, files, round, metrics, kept.best, name=self.name)
        work = self._local_round(bench, job, message, kept)
        loss = work.run()
        clock.mark("training")
        extras = work.measure()
        clock.mark("measuring")
        report_progress("saving")
        save(bench, files, round, work.tensors(), best)
        clock.mark("saving")
        samples = len(self._samples(bench, job, header["run"], "train"))
        reply = {"samples": samples, "loss": loss, "metrics": metrics, "seconds": clock.seconds}
        write_scalars(files.folder / "tensorboard", {"round": round, "site": self.name, **reply})
        pieces = cut(bench.network.state_dict(), bench.partition, Role.GLOBAL, Role.MIXED)
        return upload.update(message, reply, pieces, extras)

    def _unmask(self, job: Job, site: Site, message: Message, upload: Plain) -> Message:
        return upload.unmask(message)

    def _take_up(self, job: Job, site: Site, message: Message) -> tuple[SiteSetup, RoundFiles, Kept]:
        """Set the network to the site's state after its last round and the pieces that it has received."""
        header, bench = message.header, self._bench(job, site)
        files = self._files(job, header["run"])
        kept = restore(bench, files, header["round"], header.get("answered"), name=self.name)
        paste(message.pieces, bench.partition, bench.network.state_dict())
        self._condition(bench, header, again=kept.something)
        return bench, files, kept

    def _upload(self, job: Job, site: Site, run: str) -> Plain:
        folder = self._files(job, run).folder
        return upload_of(
            job, site, name=self.name, run=run, folder=folder, random=self._random, identity=self._identity
        )

    def _local_round(self, bench: SiteSetup, job: Job, message: Message, kept: Kept) -> LocalRound:
        header = message.header
        dataset = self._training_samples(bench, job, header)
        settings = bench.bundle.training.for_samples(len(dataset))
        context = local.make_context(
            settings,
            bench.task,
            round=header["round"],
            rounds=job.rounds,
            rate=bench.method.local.rates(header["round"]),
            site=header["index"],
            sites=header["sites"],
            items=header["items"],
            received=message.pieces,
            broadcast=message.groups,
            memory=dict(kept.memory),
        )
        return LocalRound(
            network=bench.network,
            partition=bench.partition,
            context=context,
            method=bench.method,
            dataset=dataset,
            settings=settings,
            kept=kept.optimizers,
            features=open_cache(bench.network, bench.partition, settings, self._features(job, header["run"])),
            stop=self._refuse_if_stopped,
        )

    def _finish(self, job: Job, site: Site, message: Message, upload: Plain) -> Message:
        """Write the site's model, its metrics at full resolution and pictures into the site's own folder."""
        header = message.header
        bench, files, kept = self._take_up(job, site, message)
        clock = _Clock(self._began)
        clock.mark("starting")
        chosen = self._samples(bench, job, header["run"], "validation")
        given: dict[str, Pieces] = {}
        with bench.deployed(kept.memory):
            metrics = evaluation.quick(bench.network, bench.task, bench.dataset(chosen))
            keep_best(bench, files, header["round"], metrics, kept.best, name=self.name)
            path, pictures = files.folder / "model.safetensors", files.folder / "overlays"
            bench.save_model(path, name=self.name, round=header["round"], scores=metrics)
            if groups := [group for group in outsider.AT_FINISH if group in site.publish]:
                whole = {n: v.detach().cpu().clone() for n, v in bench.network.state_dict().items()}
                given = {group: whole for group in groups}
            scores = evaluation.thorough(
                bench.network, bench.task, chosen, size=bench.size, split="validation", pictures=pictures
            )
        shutil.rmtree(self._features(job, header["run"]), ignore_errors=True)
        final = {"site": site.name, **scores}
        write_json(files.folder / "final.json", final)
        clock.mark("validating")
        return Message({"metrics": metrics, "final": final, "seconds": clock.seconds}, {}, given)

    def _bench(self, job: Job, site: Site) -> SiteSetup:
        return set_up_site(job, site, start_weights=self._start_weights)

    def _condition(self, bench: SiteSetup, header: Mapping[str, Any], *, again: bool = False) -> str:
        return bench.condition_on_site(name=self.name, number=header["number"], count=header["numbers"], again=again)

    def _dataset(self, bench: SiteSetup, job: Job, run: str, split: str) -> SampleDataset:
        return bench.dataset(self._samples(bench, job, run, split))

    def _training_samples(self, bench: SiteSetup, job: Job, header: Mapping[str, Any]) -> SampleDataset:
        """Return the site's training samples; where a method pools data, all sites' samples for the first site."""
        if not (bench.method.requires.pooled and header["index"] == 0):
            return self._dataset(bench, job, header["run"], "train")
        pool: list[Sample] = []
        for number, name in enumerate(header["pool"]):
            other = replace(bench, site=self._find_site(job, number))
            pool += self._samples(other, job, header["run"], "train", name=name)
        seen = {sample.images: sample for sample in pool if sample.added}  # several sites may add the same ones
        return bench.dataset([sample for sample in pool if not sample.added] + list(seen.values()))

    def _samples(self, bench: SiteSetup, job: Job, run: str, split: str, *, name: str = "") -> list[Sample]:
        """List a split without the samples that were quarantined at enrolment."""
        path = self._files(job, run, name).folder / QUARANTINE
        quarantined = {tuple(place) for place in json.loads(path.read_text("utf-8"))}
        return [s for s in samples(bench.site, split, bench.task.spec) if _place(s) not in quarantined]

    def _files(self, job: Job, run: str, name: str = "") -> RoundFiles:
        site = folder_name("site", name) if name else self.name
        # three states: a server whose newest is damaged repeats a round that was two rounds ago for a site
        return RoundFiles(site_folder(self._folder, job.name, run, site), of=f"{job.name}/{run}/{site}", keep=3)

    def _features(self, job: Job, run: str) -> Path:
        return self._files(job, run).folder / FOLDER

    def _refuse_if_stopped(self) -> None:
        if self._stop():
            raise SiteRefusal(f"site {self.name}: the server ended the task during training")


class _Clock:
    """Seconds of each stage, from the end of the one before."""

    def __init__(self, start: float) -> None:
        self.seconds: dict[str, float] = {}
        self._last = start

    def mark(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self._last = now


def _check_data(bench: SiteSetup) -> list[tuple]:
    """Read every sample once; return the places of those that are quarantined."""
    from shared_components.data.check import check_site  # needed at enrolment only

    problems = check_site(bench.site, spec=bench.task.spec, required=("train", "validation"))
    if fatal := [problem for problem in problems if not problem.quarantined]:
        more = f" (and {counted(len(fatal) - 1, 'more problem')}; see `surgfl check-data`)" if len(fatal) > 1 else ""
        raise SiteRefusal(f"{fatal[0]}{more}")
    for problem in problems:
        logger.warning("%s", problem)
    return [_place(problem.sample) for problem in problems if problem.sample is not None]


def _place(sample: Sample) -> tuple:
    """Return (video, index) of a sample, with a mark if it is added: added videos may have names of the site's own."""
    return (sample.video, sample.index, "added") if sample.added else (sample.video, sample.index)
