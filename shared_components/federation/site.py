"""What a site does: enrol, train a round, finish. No transport, no FLARE."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared_components import evaluation
from shared_components import training as local
from shared_components.bundle_config import Bundle, build_network, load_bundle
from shared_components.checkpoints import load_encoder, save_weights
from shared_components.data.dataset import SampleDataset, style_statistics
from shared_components.data.sites import Sample, Site, SiteError, samples
from shared_components.federation.messages import Job, Message, SiteRefusal, folder_name
from shared_components.federation.progress import write_scalars
from shared_components.federation.store import RoundFiles, write_json
from shared_components.federation.work import MEMORY, OPTIMIZER, LocalRound
from shared_components.method import Method, State, load_method
from shared_components.partition import Partition, Role, cut, partition_network, paste

logger = logging.getLogger(__name__)

ASIDE = "quarantine.json"


@dataclass
class Workbench:
    """One task's tools, built anew for every task (a simulator's task is a new process)."""

    site: Site
    bundle: Bundle
    method: Method
    network: nn.Module
    partition: Partition


@dataclass(frozen=True)
class Kept:
    """What the site kept after its last round: its best so far, optimizers' tensors, the method's memory."""

    best: dict[str, Any] = field(default_factory=dict)
    optimizers: State = field(default_factory=dict)
    memory: State = field(default_factory=dict)


class SiteRunner:
    """Answer the server's messages for one site.

    Args:
        name: The federation's name of the site.
        find_site: Called with the job and the site's number; returns the checked site description. A
            method that pools data (`Method.pooled`) asks for the other numbers, too.
        folder: Where runs are kept; the site's own folder is ``<folder>/<job>/<run>/<name>``.
        encoder_weights: Official ImageNet weights of the encoder, for the very first model.
        stop: Asked before every batch; training ends with an error once it says True.
    """

    answered_before = False  # by any runner of this process: a task's start-up includes the process's own

    def __init__(
        self,
        name: str,
        *,
        find_site: Callable[[Job, int], Site],
        folder: Path,
        encoder_weights: Path | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self._find_site = find_site
        self._folder = folder
        self._encoder_weights = encoder_weights
        self._stop = stop

    def answer(self, task: str, message: Message) -> Message:
        """Run one task.

        Args:
            task: ``enrol``, ``round`` or ``finish``.
            message: The server's; its header has ``job``, ``run``, ``round``, ``index`` (the site's number),
                ``sites`` (how many), ``send_initial`` (enrol) and ``styles`` (of all sites, in order).

        Returns:
            The reply. Its header echoes ``job``, ``round`` and ``classes``, on which the site's own filter
            relies, and adds ``seconds`` and ``memory_mb``; enrol: ``samples``, ``style``, ``text``,
            ``partition``; round: ``samples``, ``loss``, ``metrics``; finish: ``metrics``, ``final``.

        Raises:
            SiteRefusal: The site cannot take part; the sentence names it and what to do.
        """
        handlers = {"enrol": self._enrol, "round": self._round, "finish": self._finish}
        started = time.perf_counter()
        self._began = process_start() if not SiteRunner.answered_before else started
        SiteRunner.answered_before = True
        try:
            job = Job.from_json(message.header["job"])
            site = self._find_site(job, message.header["index"])
            reply = handlers[task](job, site, message)
        except (SiteError, ValueError, FloatingPointError, KeyError) as error:
            text = error.args[0] if error.args else repr(error)
            raise SiteRefusal(text if self.name in str(text) else f"site {self.name}: {text}") from error
        reply.header.update(
            round=message.header["round"], job=message.header["job"], classes=list(site.classes)
        )
        reply.header.setdefault("seconds", {})["total"] = time.perf_counter() - started
        reply.header["memory_mb"] = evaluation.peak_memory_mb()
        return reply

    def _enrol(self, job: Job, site: Site, message: Message) -> Message:
        """Check the whole site before the first round, and say what the server needs to know."""
        header = message.header
        aside = _check_data(site)
        write_json(self._files(job, header["run"]).folder / ASIDE, aside)
        bench = self._workbench(job, site)
        dataset = self._dataset(bench, job, header["run"], "train")
        header_out: dict[str, Any] = {
            "samples": len(dataset),
            "style": self._style(bench, dataset),
            "text": site.text if "text" in site.publish else "",
            "partition": bench.partition.to_json(),
        }
        pieces = cut(bench.network.state_dict(), bench.partition, Role.GLOBAL, Role.MIXED)
        return Message(header_out, {"pieces": pieces} if header["send_initial"] and pieces else {})

    def _style(self, bench: Workbench, dataset: SampleDataset) -> list[list[float]] | None:
        if "style" not in bench.method.shares:
            return None
        if "style" not in bench.site.publish:
            raise SiteRefusal(
                f"{bench.site.path}: site {self.name} does not publish 'style', which {bench.method.name} needs "
                "(six numbers); add it to 'publish', or switch sge off in the job"
            )
        mean, deviation = style_statistics(dataset)
        return [mean.tolist(), deviation.tolist()]

    def _round(self, job: Job, site: Site, message: Message) -> Message:
        header, round = message.header, message.header["round"]
        bench = self._workbench(job, site)
        files = self._files(job, header["run"])
        kept = self._restore(bench, files, round)
        paste(message.pieces, bench.partition, bench.network.state_dict())

        clock = _Clock(self._began)
        clock.mark("starting")
        validation = self._dataset(bench, job, header["run"], "validation")
        with _deployed(bench, kept.memory):
            metrics = evaluation.quick(bench.network, validation, bench.site)
            clock.mark("validating")
            best = self._keep_best(bench, job, header, metrics, kept.best)
        work = self._local_round(bench, job, message, kept)
        loss = work.run()
        clock.mark("training")
        extras = work.measure()
        clock.mark("measuring")
        state = bench.network.state_dict()
        own = {f"local/{k}": v for k, v in cut(state, bench.partition, Role.LOCAL).items()}
        files.save(round, own | work.tensors(), {"best": best})
        clock.mark("saving")
        samples = len(self._frames(bench.site, job, header["run"], "train"))
        reply = {"samples": samples, "loss": loss, "metrics": metrics, "seconds": clock.seconds}
        write_scalars(files.folder / "tensorboard", {"round": round, "site": self.name, **reply})
        pieces = cut(state, bench.partition, Role.GLOBAL, Role.MIXED)
        return Message(reply, {**({"pieces": pieces} if pieces else {}), **extras})

    def _local_round(self, bench: Workbench, job: Job, message: Message, kept: Kept) -> LocalRound:
        header, settings = message.header, bench.bundle.training
        context = local.make_context(
            settings,
            round=header["round"],
            site=header["index"],
            sites=header["sites"],
            styles=_styles(header.get("styles")),
            received=message.pieces,
            broadcast={group: pieces for group, pieces in message.tensors.items() if group != "pieces"},
            memory=dict(kept.memory),
        )
        return LocalRound(
            network=bench.network,
            partition=bench.partition,
            context=context,
            method=bench.method,
            dataset=self._training_frames(bench, job, header),
            settings=settings,
            kept=kept.optimizers,
            stop=self._refuse_if_stopped,
        )

    def _finish(self, job: Job, site: Site, message: Message) -> Message:
        """Leave the site's model, its metrics at full resolution and overlays in the site's own folder."""
        header = message.header
        bench = self._workbench(job, site)
        files = self._files(job, header["run"])
        kept = self._restore(bench, files, header["round"])
        paste(message.pieces, bench.partition, bench.network.state_dict())
        clock = _Clock(self._began)
        clock.mark("starting")
        validation = self._dataset(bench, job, header["run"], "validation")
        settings = bench.bundle.training
        with _deployed(bench, kept.memory):
            metrics = evaluation.quick(bench.network, validation, bench.site)
            self._keep_best(bench, job, header, metrics, kept.best)
            self._save_model(bench, job, files.folder / "model.safetensors", header["round"], metrics)
            final = evaluation.thorough(
                bench.network, validation.samples, bench.site, "validation", settings, files.folder
            )
        write_json(files.folder / "final.json", final)
        clock.mark("validating")
        return Message({"metrics": metrics, "final": final, "seconds": clock.seconds})

    def _workbench(self, job: Job, site: Site) -> Workbench:
        bundle = load_bundle(job.bundle, job.training)
        method = load_method(job.method, **job.arguments)
        # one seed for all sites: where nothing is sent (LOCAL pieces), sites still start from one model
        torch.manual_seed(bundle.training.seed)
        network = build_network(bundle.network, out_channels=len(site.classes))
        if self._encoder_weights:
            load_encoder(network, self._encoder_weights)
        return Workbench(
            site, bundle, method, network.to(local.device()), partition_network(network, method.rule)
        )

    def _dataset(self, bench: Workbench, job: Job, run: str, split: str) -> SampleDataset:
        return _sized(bench, self._frames(bench.site, job, run, split))

    def _training_frames(self, bench: Workbench, job: Job, header: Mapping[str, Any]) -> SampleDataset:
        """Return the site's own training frames; where a method pools data, all sites' for the first one."""
        if not (bench.method.pooled and header["index"] == 0):
            return self._dataset(bench, job, header["run"], "train")
        pool: list[Sample] = []
        for number, name in enumerate(header["pool"]):
            site = self._find_site(job, number)
            pool += self._frames(site, job, header["run"], "train", name=name)
        return _sized(bench, pool)

    def _frames(self, site: Site, job: Job, run: str, split: str, *, name: str = "") -> list[Sample]:
        """List a split without the frames that were set aside at enrolment."""
        path = self._files(job, run, name).folder / ASIDE
        aside = {tuple(item) for item in json.loads(path.read_text())}
        return [f for f in samples(site, split) if (f.video, f.index) not in aside]

    def _files(self, job: Job, run: str, name: str = "") -> RoundFiles:
        folder = self._folder / job.name / folder_name("run", run)
        return RoundFiles(folder / (folder_name("site", name) if name else self.name))

    def _restore(self, bench: Workbench, files: RoundFiles, round: int) -> Kept:
        """Paste the LOCAL pieces of the site's last round before this one; return what else it kept."""
        found = files.load(before=round)
        if found is None:
            return Kept()
        _, tensors, values = found
        local_pieces = {k.removeprefix("local/"): v for k, v in tensors.items() if k.startswith("local/")}
        paste(local_pieces, bench.partition, bench.network.state_dict())
        memory = {k.removeprefix(MEMORY): v for k, v in tensors.items() if k.startswith(MEMORY)}
        optimizers = {k: v for k, v in tensors.items() if k.startswith(OPTIMIZER)}
        return Kept(values["best"], optimizers, memory)

    def _keep_best(
        self, bench: Workbench, job: Job, header: Mapping[str, Any], metrics: dict, best: dict[str, Any]
    ) -> dict[str, Any]:
        """Save exactly the weights that were validated when they are the best so far."""
        dice = metrics["dice"]["mean"]
        if dice is None or dice <= best.get("dice", -1.0):
            return best
        path = self._files(job, header["run"]).folder / "best.safetensors"
        self._save_model(bench, job, path, header["round"], metrics)
        return {"dice": dice, "round": header["round"]}

    def _save_model(self, bench: Workbench, job: Job, path: Path, round: int, metrics: dict) -> None:
        notes = {
            "bundle": job.bundle,
            "method": job.method,
            "site": self.name,
            "round": str(round),
            "classes": ",".join(bench.site.classes),
            "height": str(bench.bundle.training.height),
            "width": str(bench.bundle.training.width),
            "validation_dice": str(metrics["dice"]["mean"]),
        }
        save_weights(path, bench.network.state_dict(), notes)

    def _refuse_if_stopped(self) -> None:
        if self._stop():
            raise SiteRefusal(f"site {self.name}: the server ended the task during training")


@contextmanager
def _deployed(bench: Workbench, memory: State) -> Iterator[None]:
    """Let the network be the model that the site would use, for as long as this lasts."""
    if bench.method.deploy is None:
        yield
        return
    own = {name: value.clone() for name, value in bench.network.state_dict().items()}
    bench.network.load_state_dict(bench.method.deploy(own, memory))
    yield
    bench.network.load_state_dict(own)


def _sized(bench: Workbench, chosen: list[Sample]) -> SampleDataset:
    settings = bench.bundle.training
    return SampleDataset(chosen, height=settings.height, width=settings.width, site=bench.site)


class _Clock:
    """Seconds of each stage since the one before."""

    def __init__(self, start: float) -> None:
        self.seconds: dict[str, float] = {}
        self._last = start

    def mark(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self._last = now


def process_start() -> float:
    """Return when this process was created, on the clock of ``perf_counter``; now, where that is not known."""
    try:
        import psutil  # nvflare depends on it

        return time.perf_counter() - (time.time() - psutil.Process().create_time())
    except (ImportError, OSError):
        return time.perf_counter()


def _check_data(site: Site) -> list[list]:
    """Read everything once; return the (video, index) of frames that the site's quarantine sets aside."""
    from shared_components.data.check import check_site  # needed at enrolment only

    problems = check_site(site, required=("train", "validation"))
    if fatal := [problem for problem in problems if not problem.quarantined]:
        more = f" (and {len(fatal) - 1} more problems; see `surgfl check-data`)" if len(fatal) > 1 else ""
        raise SiteRefusal(f"{fatal[0]}{more}")
    for problem in problems:
        logger.warning("%s", problem)
    return [[p.sample.video, p.sample.index] for p in problems if p.sample is not None]


def _styles(values: list | None) -> tuple[Tensor, Tensor] | None:
    if not values:
        return None
    return torch.tensor([v[0] for v in values]), torch.tensor([v[1] for v in values])
