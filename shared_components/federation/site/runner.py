"""A site's side of a run without transport: enrol, train rounds, finish."""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from shared_components.common import machine
from shared_components.common.atomic import NotWritten, write_json
from shared_components.common.counted import counted
from shared_components.common.progress import report_progress
from shared_components.core import evaluation, replicas
from shared_components.core import training as local
from shared_components.core.feature_cache import FOLDER, open_cache
from shared_components.core.initial_weights import describe_start, unused_file_warning
from shared_components.core.partition import Pieces, cut, fixed_hash, paste
from shared_components.core.prompted_streams import unseen_at_first
from shared_components.core.site_conditioning import facts_of
from shared_components.core.text.vectors import TextError
from shared_components.core.training_settings import Training
from shared_components.data import frame_cache
from shared_components.data.collate import collate
from shared_components.data.dataset import SampleDataset
from shared_components.data.frame_cache import GB, FrameCache
from shared_components.data.profile_items import ITEMS
from shared_components.data.samples import Sample, samples
from shared_components.data.site import Site, SiteError
from shared_components.federation.messages import Job, Message, Place, Request, SiteRefusal, folder_name
from shared_components.federation.messages.schema import PUBLISHED_MODELS, REPLY
from shared_components.federation.messages.wire_format import unpack_request
from shared_components.federation.privacy.gaussian import Randomness
from shared_components.federation.runs.store import RoundFiles
from shared_components.federation.secure_sums.identity import Identity
from shared_components.federation.setup.allowed_payload import Expected
from shared_components.federation.setup.limits import gpus_of, limits_file, limits_of, why_unrecorded
from shared_components.federation.setup.local_round import LocalRound
from shared_components.federation.setup.site_setup import SiteSetup, set_up_site, wrong_kind
from shared_components.federation.site import disclosure
from shared_components.federation.site.agreed_job import Sender, agreed_job, keep_agreed, site_folder
from shared_components.federation.site.noisy_updates import Noisy
from shared_components.federation.site.replica_processes import ReplicaTask, sharing
from shared_components.federation.site.secure_sums import Masked
from shared_components.federation.site.sent_updates import Plain
from shared_components.federation.site.state import SiteState, restore, save, save_best
from shared_components.federation.site.task_log import log_task
from shared_components.reporting.tensorboard import write_scalars

logger = logging.getLogger(__name__)

QUARANTINE = "quarantine.json"


@dataclass(kw_only=True)
class SiteRunner:
    """Answers the server's messages for one site.

    A method that pools data (`Requires.pooled`) also calls ``find_site`` with the numbers of the other sites.
    """

    name: str = field(kw_only=False)  # of the site in the federation
    find_site: Callable[[Job, int], Site]  # (job, number of the site) -> checked site description
    folder: Path  # of all runs; the site's folder is ``<folder>/<job>/<run>/<name>``
    start_weights: Path | None = None  # file of the first weights, if the job's ``start`` is ``file``
    stop: Callable[[], bool] = lambda: False  # called before every batch; True ends the training with an error
    random: Randomness = os.urandom  # source of the noise in a job with ``privacy``; secret except in tests
    identity: Identity | None = None  # startup kit that vouches for the site's key of secure sums
    without_gpus: bool = False  # for tests: `gpus` of limits.yaml starts processes on the CPU

    answered_before: ClassVar = False  # by any runner of this process: the first task's seconds include its start

    def answer(self, request: Request) -> Message:
        """Run one task; return the reply, whose plain values `schema.REPLY` declares.

        SiteRefusal: the site cannot take part; the message names the site and the remedy.
        """
        started = time.perf_counter()
        report_progress("starting")
        self._began = machine.process_start() if not SiteRunner.answered_before else started
        SiteRunner.answered_before = True
        try:
            request = replace(request, job=agreed_job(request, self.folder, site=self.name))
            site = self.find_site(request.job, request.place.number)
            sender = Sender(self.name, request.run, self._files(request).folder, self.identity, self.random)
            upload = _upload_of(request.job, site, sender)
            if request.task == "unmask":
                reply = upload.unmask(request)
            else:
                handlers = {"enrol": self._enrol, "round": self._round, "finish": self._finish}
                reply = handlers[request.task](request, site, upload)
        except NotWritten as error:
            raise SiteRefusal(f"site {self.name}: {error}") from error
        except (SiteError, ValueError, FloatingPointError, KeyError) as error:
            text = error.args[0] if error.args else repr(error)
            raise SiteRefusal(text if self.name in str(text) else f"site {self.name}: {text}") from error
        reply.header["round"] = request.round
        reply.header.setdefault("seconds", {})["total"] = time.perf_counter() - self._began
        reply.header["memory_mb"] = machine.peak_memory_mb()
        seconds = reply.header["seconds"]
        reply = upload.strip(reply)
        log_task(self._files(request).folder, request, reply, seconds)
        header = {key: value for key, value in reply.header.items() if REPLY[key].withheld not in site.withhold}
        return replace(reply, header=header)

    def _enrol(self, request: Request, site: Site, upload: Plain) -> Message:
        """Check the whole site before the first round, and return its profile."""
        job = request.job
        setup = self._set_up(request, site, sites=request.place.sites)
        if refusal := wrong_kind(setup.method, setup.task.card):
            raise SiteRefusal(f"{site.path}: {refusal}")
        upload.check(setup.method, job.rounds - request.round)
        self._write_what_leaves(setup, request)
        if warning := unused_file_warning(setup.start["start"], self.start_weights):
            logger.warning("site %s: %s", self.name, warning)
        if setup.start["sha256"]:
            fresh = ", ".join(setup.start["fresh"]) or "nothing"
            logger.info("site %s begins from %s; from the seed: %s", self.name, describe_start(setup.start), fresh)
        prepared = self._condition(setup, request)
        write_json(self._files(request).folder / QUARANTINE, _check_data(setup))
        self._warn_of_late_objects(setup, request)
        dataset = setup.dataset(self._samples(setup, request, "train"))
        local.check_answers(setup.network, setup.task, setup.size)
        setup.task.add_randomness(collate([dataset[0]]), torch.Generator().manual_seed(0))  # the size fits the task
        self._warn_of_few(setup.bundle.training, len(dataset), self._gpus(site))
        state = setup.network.state_dict()
        profile: dict[str, Any] = {
            "samples": len(dataset),
            "card": setup.task.card.to_json(),
            "items": self._items(setup, dataset, request.place),
            "partition": setup.partition.to_json(),
            "fixed": fixed_hash(state, setup.partition),
            "prepared": prepared,
            "start": {key: setup.start[key] for key in ("start", "sha256")},
            **upload.enrolment(),
        }
        keep_agreed(request, self.folder, site=self.name)
        return Message(profile, cut(state, setup.partition, *(disclosure.SENT if request.send_initial else ())))

    def _write_what_leaves(self, setup: SiteSetup, request: Request) -> None:
        expected, site = Expected(setup.method, setup.task, setup.network.state_dict(), setup.partition), setup.site
        report = disclosure.what_leaves(request.job, expected, publish=site.publish, withhold=site.withhold)
        path = self._files(request).folder / disclosure.FILE
        write_json(path, report.to_json())
        logger.info("site %s: %s; %s has the rest", self.name, report.sentence(), path)

    def _warn_of_late_objects(self, setup: SiteSetup, request: Request) -> None:
        """Warn of videos whose first frame shows no object, in a task that follows the objects of the first frame."""
        for split in ("validation", "test") if setup.task.prompting is not None else ():
            chosen = self._samples(setup, request, split) if setup.site.split.get(split) else []
            if frames := unseen_at_first(setup.task, chosen):
                more = f" (and {len(frames) - 1} more)" if len(frames) > 1 else ""
                logger.warning(
                    "site %s: split %s: video %s begins with a frame (%d) that shows no object%s: none is followed, "
                    "and all is predicted empty; leave out the frames before the first object",
                    self.name, split, frames[0].video, frames[0].index, more,
                )  # fmt: skip

    def _warn_of_few(self, training: Training, samples: int, gpus: int) -> None:
        """Warn of fewer samples than a batch, or refuse them by ValueError, see `Training.for_samples`."""
        if samples < training.batch_size:
            size, count = training.for_samples(samples).batch_size, counted(samples, "training sample")
            if size < gpus:
                raise SiteRefusal(f"site {self.name} has {count}, fewer than its {gpus} GPUs (gpus in limits.yaml)")
            how = f"batches of {size}" if size < training.batch_size else "some come twice in it"
            logger.warning("site %s has %s, fewer than a batch of %d: %s", self.name, count, training.batch_size, how)

    def _items(self, setup: SiteSetup, dataset: SampleDataset, place: Place) -> dict[str, Any]:
        """Return the profile items that the method reads and the site publishes."""
        method, site = setup.method, setup.site
        facts = facts_of(site, number=place.number, count=place.numbers)
        if refused := sorted(method.requires.items - set(site.publish)):
            needed = f"{refused[0]!r}, which {method.name} needs ({ITEMS[refused[0]].words})"
            remedy = "add it to 'publish', or change the job's method or arguments"
            raise SiteRefusal(f"{site.path}: site {self.name} does not publish {needed}; {remedy}")
        asked = (method.requires.items | method.requires.optional_items) & set(site.publish)
        try:
            return {
                name: own(facts) if (own := method.local.items.get(name)) else ITEMS[name].measure(dataset, site.text)
                for name in sorted(asked)
            }
        except TextError as error:
            raise SiteRefusal(f"{site.path}: site {self.name}: {error}") from error

    def _round(self, request: Request, site: Site, upload: Plain) -> Message:
        request = unpack_request(request, request.job.wire)
        if (answer := upload.before_round(request)) is not None:
            return answer
        setup, state = self._restore(request, site)
        upload.before_training(setup)
        files, clock = self._files(request), _Clock(self._began)
        clock.mark("starting")
        scored, best = {}, state.best
        with sharing(self._gpus(site), self._replica_task, request):
            if request.round % request.job.validate_every == 0:
                with setup.deployed(state.memory):
                    metrics = setup.validate(setup.dataset(self._samples(setup, request, "validation")))
                    clock.mark("validating")
                    best = save_best(setup, files, request.round, metrics, best, name=self.name)
                scored = {"metrics": metrics}
            work = self._local_round(setup, request, state)
            loss = work.run()
        clock.mark("training")
        extras = work.measure()
        clock.mark("measuring")
        report_progress("saving")
        save(setup, files, request.round, work.tensors(), best, state.fastest)
        clock.mark("saving")
        samples = len(self._samples(setup, request, "train"))
        reply = {"samples": samples, "loss": loss, **scored, "seconds": clock.seconds}
        write_scalars(files.folder / "tensorboard", {"round": request.round, "site": self.name, **reply})
        pieces = cut(setup.network.state_dict(), setup.partition, *disclosure.SENT)
        return upload.update(request, reply, pieces, extras)

    def train_beside(self, request: Request) -> None:
        """Train a round as a further replica; the first replica has the result, and answers."""
        setup, state = self._restore(request, self.find_site(request.job, request.place.number))
        self._local_round(setup, request, state).run()

    def _replica_task(self, request: Request) -> ReplicaTask:
        numbers = {request.place.number, *range(len(request.pool))}
        read = {number: self.find_site(request.job, number) for number in sorted(numbers)}
        sites = {number: (site.name, site.path.absolute()) for number, site in read.items()}
        files = self._files(request).folder.absolute()
        return ReplicaTask(self.name, self.folder.absolute(), files, sites, self.start_weights)

    def _gpus(self, site: Site) -> int:
        """Return the number of GPUs that share the training; SiteRefusal if the machine has fewer."""
        count, here = gpus_of(limits_of(site)), torch.cuda.device_count()
        if count > max(1, here) and not self.without_gpus:
            raise SiteRefusal(
                f"site {self.name}: gpus is {count} in {limits_file(site)}, and this process sees {here} "
                "(CUDA_VISIBLE_DEVICES); write a smaller number, or all"
            )
        return count

    def _set_up(self, request: Request, site: Site, *, sites: int = 1) -> SiteSetup:
        setup = set_up_site(request.job, site, start_weights=self.start_weights, sites=sites)
        limits = limits_of(site)
        setup.workers = machine.frame_workers() if limits.workers is None else limits.workers
        setup.eager = why_unrecorded(limits, request.job)
        if limit := limits.frame_cache_gb:
            folder, first = self._files(request).folder / frame_cache.FOLDER, replicas.rank() == 0
            setup.cache = FrameCache(folder, limit=int(limit * GB), sharers=gpus_of(limits), first=first)
        return setup

    def _restore(self, request: Request, site: Site) -> tuple[SiteSetup, SiteState]:
        """Set the network to the site's last state and the received pieces."""
        setup = self._set_up(request, site)
        state = restore(setup, self._files(request), request.round, request.answered, name=self.name)
        paste(request.pieces, setup.partition, setup.network.state_dict())
        self._condition(setup, request, again=state.restored)
        return setup, state

    def _local_round(self, setup: SiteSetup, request: Request, state: SiteState) -> LocalRound:
        dataset = self._training_samples(setup, request)
        settings = setup.bundle.training.for_samples(len(dataset))
        context = local.make_context(
            settings, setup.task, round=request.round, rounds=request.job.rounds,
            rate=setup.method.local.rates(request.round), site=request.place.index, sites=request.place.sites,
            items=request.items, received=request.pieces, broadcast=request.groups, memory=dict(state.memory),
            eager=setup.eager,
        )  # fmt: skip
        folder, first = self._files(request).folder / FOLDER, replicas.rank() == 0
        features = open_cache(setup.network, setup.partition, settings, folder, adds=first)
        return LocalRound(
            setup.network, setup.partition, context, setup.method, dataset, settings, state.optimizers,
            features=features, workers=setup.workers, stop=self._refuse_if_stopped,
            fastest=state.fastest.for_run(request.job.rounds * settings.iterations),
        )  # fmt: skip

    def _finish(self, request: Request, site: Site, upload: Plain) -> Message:
        setup, state = self._restore(request, site)
        files, clock = self._files(request), _Clock(self._began)
        clock.mark("starting")
        chosen = self._samples(setup, request, "validation")
        published: dict[str, Pieces] = {}
        with setup.deployed(state.memory):
            metrics = setup.validate(setup.dataset(chosen))
            save_best(setup, files, request.round, metrics, state.best, name=self.name)
            setup.save_model(files.folder / "model.safetensors", name=self.name, round=request.round, scores=metrics)
            if groups := [group for group in PUBLISHED_MODELS if group in site.publish]:
                whole = {n: v.detach().cpu().clone() for n, v in setup.network.state_dict().items()}
                published = dict.fromkeys(groups, whole)
            options: dict[str, Any] = {"split": "validation", "pictures": files.folder / "overlays"}
            scores = evaluation.score_fully(setup.network, setup.task, chosen, size=setup.size, **options)
        for cache in (FOLDER, frame_cache.FOLDER):
            shutil.rmtree(files.folder / cache, ignore_errors=True)
        final = {"site": site.name, **scores}
        write_json(files.folder / "final.json", final)
        clock.mark("validating")
        return Message({"metrics": metrics, "final": final, "seconds": clock.seconds}, {}, published)

    def _condition(self, setup: SiteSetup, request: Request, *, again: bool = False) -> str:
        place = request.place
        return setup.condition_on_site(name=self.name, number=place.number, count=place.numbers, again=again)

    def _training_samples(self, setup: SiteSetup, request: Request) -> SampleDataset:
        """Return the site's training samples; for a method that pools data, the first site gets all sites' samples."""
        if not (setup.method.requires.pooled and request.place.index == 0):
            return setup.dataset(self._samples(setup, request, "train"))
        pool: list[Sample] = []
        for number, name in enumerate(request.pool):
            other = replace(setup, site=self.find_site(request.job, number))
            pool += self._samples(other, request, "train", name=name)
        added = {sample.images: sample for sample in pool if sample.added}  # once, if several sites add the same
        return setup.dataset([sample for sample in pool if not sample.added] + list(added.values()))

    def _samples(self, setup: SiteSetup, request: Request, split: str, *, name: str = "") -> list[Sample]:
        path = self._files(request, name).folder / QUARANTINE
        quarantined = {tuple(place) for place in json.loads(path.read_text("utf-8"))}
        return [s for s in samples(setup.site, split, setup.task.spec) if _place(s) not in quarantined]

    def _files(self, request: Request, name: str = "") -> RoundFiles:
        job, run, site = request.job.name, request.run, folder_name("site", name) if name else self.name
        every = request.job.checkpoint_every
        # three states: a server whose newest state is damaged repeats the round before the last
        return RoundFiles(site_folder(self.folder, job, run, site), of=f"{job}/{run}/{site}", keep=3, every=every)

    def _refuse_if_stopped(self) -> None:
        if self.stop():
            raise SiteRefusal(f"site {self.name}: the server ended the task during training")


class _Clock:
    """Seconds of each stage since the end of the stage before."""

    def __init__(self, start: float) -> None:
        self.seconds: dict[str, float] = {}
        self._last = start

    def mark(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self._last = now


def _upload_of(job: Job, site: Site, sender: Sender) -> Plain:
    if job.noise:
        return Noisy(job.noise, job, site, sender)
    return Masked(job, sender) if job.secure_sums else Plain(job, sender)


def _check_data(setup: SiteSetup) -> list[tuple]:
    """Return the places of unreadable samples; SiteRefusal if the site cannot take part."""
    from shared_components.data.check import check_site  # only needed at enrolment

    problems = check_site(setup.site, spec=setup.task.spec, required=("train", "validation"))
    if fatal := [problem for problem in problems if not problem.quarantined]:
        more = f" (and {counted(len(fatal) - 1, 'more problem')}; see `surgfl check-data`)" if len(fatal) > 1 else ""
        raise SiteRefusal(f"{fatal[0]}{more}")
    for problem in problems:
        logger.warning("%s", problem)
    return [_place(problem.sample) for problem in problems if problem.sample is not None]


def _place(sample: Sample) -> tuple:
    """Return (video, index) of a sample, and a mark if it is added: an added video may have the same name."""
    return (sample.video, sample.index, "added") if sample.added else (sample.video, sample.index)
