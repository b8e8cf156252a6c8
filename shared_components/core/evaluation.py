"""Score a network on a site's samples for any task: quickly during the rounds, with all metrics at the end.

Federations, bundles and comparisons use the same `Scorer`. A sample is scored on its current frame, so that every
labelled frame counts once, even if several clips contain it. A network with box prompts is scored on whole videos, see
`prompted_streams`.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shared_components.common.atomic import write_bytes, write_json
from shared_components.common.drawing.pictures import encoded
from shared_components.common.progress import follow
from shared_components.core.card import Metric
from shared_components.core.prompted_streams import Tracking, prompted, stream_batches, streams_of
from shared_components.core.task import Answer, Batch, Scores, Task
from shared_components.core.training_settings import Precision
from shared_components.data.collate import collate
from shared_components.data.dataset import SampleDataset
from shared_components.data.samples import Item, Sample, read_sample
from shared_components.data.targets import maps_of
from shared_components.data.transforms import resize_image, to_tensors
from shared_components.networks.fused_fpn import fuse

BATCH = 8
CPU_PIXELS = 512 * 640 // 2  # of the frames that a CPU predicts at once; the maps of more frames exceed its cache


class Scorer:
    """Collects the scores of a split; ``quick`` leaves out slow metrics."""

    def __init__(self, task: Task, *, quick: bool) -> None:
        self.task = task
        self.items: list[str] = []  # names of the samples
        self.videos: list[str] = []  # video of each sample
        self.scores: list[Any] = []
        self._quick = quick
        self._tracking: Tracking | None = None
        self._streams: list[np.ndarray] = []  # per stream, which objects have a box, (N,) bool

    def add_randomness(self, batch: Batch) -> Batch:
        """Add the task's random inputs, the same for every model."""
        return with_randomness(self.task, batch, len(self.scores))

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        """Predict a batch; for a frame of a stream, the network keeps a memory of the earlier frames."""
        if self.task.prompting is None:
            return self.task.predict(network, batch)
        if "stride" in batch:
            self._tracking = Tracking(prompted(network), batch["boxes"], int(batch["stride"]), self.task.spec.padding)
            self._streams.append(~batch["boxes"].isnan().any(-1)[0, 0].cpu().numpy())
        assert self._tracking is not None, "the first frame of a stream has its stride"
        return self.task.predict(self._tracking, batch)

    def add(self, outputs: Tensor, batch: Batch, items: Sequence[Item]) -> None:
        """Score the outputs of a batch; ``items`` are its samples at the size for scoring."""
        sizes = [_size_of(item) for item in items]
        for answer, item in zip(self.task.postprocess(outputs, batch, sizes), items, strict=True):
            self.scores.append(self.task.score(answer, item, quick=self._quick))
            self.items.append(item.name)
            self.videos.append(item.video)

    def by_sample(self) -> list[dict[str, Any]]:
        """Return the values for paired tests: one row per video if the task has scores by video, else per sample.

        ``{"video": video, "sample": name, or "" for a whole video, "values": {metric: value or None}}``.
        """
        if videos := self.task.per_video(self.scores):
            return [
                {"video": video, "sample": "", "values": json_values(dict(values))} for video, values in videos.items()
            ]
        rows = zip(self.videos, self.items, self.scores, strict=True)
        names = [metric.name for metric in self.task.metrics]
        summaries = [(video, name, json_values(self.task.summarise([score]))) for video, name, score in rows]
        return [
            {"video": video, "sample": sample, "values": {n: values[n].get("mean") for n in names if n in values}}
            for video, sample, values in summaries
        ]

    def summary(self) -> Scores:
        """Return the summary of all scores as JSON values, with the number of streams without a box by class."""
        summary = self.task.summarise(self.scores)
        if self._streams:
            names = self.task.card.outputs[-len(self._streams[0]) :]
            without = dict(zip(names, np.sum(~np.stack(self._streams), axis=0), strict=True))
            summary |= {"prompts": {"streams": len(self._streams), "without_box": without}}
        return json_values(summary)


def with_randomness(task: Task, batch: Batch, number: int) -> Batch:
    """Add the task's random inputs to the batch that begins with sample ``number`` of a split."""
    return task.add_randomness(batch, torch.Generator().manual_seed(number))


def score_quickly(
    network: nn.Module, task: Task, dataset: SampleDataset, *, precision: Precision = "float32"
) -> Scores:
    """Score at input size without slow metrics: ``{metric: {output: value or None, "mean": ...}, "frames": n}``.

    The network predicts with fused decoders, see `networks.fused_fpn`, and in the ``precision`` of the training.
    """
    batches = follow(small_batches(dataset, task), "validating", batch_count(dataset, task))
    fused = fuse(copy.deepcopy(network)) if getattr(network, "fusable", ()) else network
    where = next((p.device.type for p in network.parameters()), "cpu")
    with torch.autocast(where, dtype=torch.bfloat16, enabled=precision == "bf16"):
        return score_batches(fused, task, batches)


def score_batches(network: nn.Module, task: Task, batches: Iterable[tuple[Batch, list[Item]]]) -> Scores:
    """Score batches like `score_quickly`; each batch comes with its samples at the size for scoring."""
    scorer = Scorer(task, quick=True)
    _run(network, scorer, batches)
    return scorer.summary()


def score_fully(
    network: nn.Module,
    task: Task,
    chosen: Sequence[Sample],
    *,
    size: tuple[int, int],
    split: str,
    pictures: Path | None = None,
    by_sample: bool = False,
) -> Scores:
    """Score all metrics at the size of the labels; the input has the ``size`` (height, width).

    ``pictures`` is the folder for `draw_pictures`. ``by_sample`` adds `Scorer.by_sample` as ``samples``.
    """
    scorer = Scorer(task, quick=False)
    batches = native_batches(chosen, size, task, prefix=f"{split}-")
    _run(network, scorer, follow(batches, "scoring", len(chosen)))
    if pictures is not None:
        draw_pictures(network, scorer, chosen, size=size, split=split, folder=pictures)
    samples = {"samples": scorer.by_sample()} if by_sample else {}
    return {"split": split, **scorer.summary(), **samples}


def draw_pictures(
    network: nn.Module, scorer: Scorer, chosen: Sequence[Sample], *, size: tuple[int, int], split: str, folder: Path
) -> None:
    """Draw the best, a typical and the worst sample of a split, and delete older pictures of the split.

    `<split>-<number>-<sample>.png` contains all panels side by side. The JSON file of the same name contains the
    sample, its rank, its scores and the boxes of the panels.
    """
    task = scorer.task
    old = {path for suffix in ("png", "json") for path in folder.glob(f"{split}-*.{suffix}")}
    values = [first_value(task, json_values(task.summarise([score]))) for score in scorer.scores]
    ranks = exemplars(values, task.metrics[0])
    for number, answer, item in predicted(network, task, chosen, sorted(ranks), size=size):
        sample, name, rank = chosen[number], scorer.items[number], ranks[number]
        sheet = task.sheet(answer, item)
        record = {
            "split": split, "rank": rank, "of": len(chosen), "video": sample.video, "frame": sample.index,
            "scores": json_values(task.summarise([scorer.scores[number]])), **sheet.to_json(),
        }  # fmt: skip
        files = folder / f"{name}.png", folder / f"{name}.json"
        write_picture(files[0], sheet.image())
        write_json(files[1], record)
        old -= set(files)
    for file in old:
        file.unlink()


def exemplars(values: Sequence[float], metric: Metric) -> dict[int, str]:
    """Choose the "best", "typical" (median) and "worst" sample by number, or a single "typical" or "not scored" one."""
    known = [number for number, value in enumerate(values) if not math.isnan(value)]
    known.sort(key=lambda number: -values[number] if metric.higher_is_better else values[number])
    if len(known) < 2:
        return {known[0]: "typical"} if known else {0: "not scored"} if values else {}
    # sorted from the best; with two in the middle, the better one
    middle = {known[(len(known) - 1) // 2]: "typical"} if len(known) > 2 else {}
    return {known[0]: "best", **middle, known[-1]: "worst"}


def predicted(
    network: nn.Module, task: Task, chosen: Sequence[Sample], numbers: Sequence[int], *, size: tuple[int, int]
) -> Iterator[tuple[int, Answer, Item]]:
    """Yield the predictions of some samples by ascending number, as scored; earlier frames of a stream are repeated."""
    with _evaluating(network) as where:
        scorer = Scorer(task, quick=True)
        for number, batch, items in _up_to(chosen, numbers, task, size):
            ready = with_randomness(task, {key: value.to(where) for key, value in batch.items()}, number)
            outputs = scorer.predict(network, ready)
            if number in numbers:
                yield number, task.postprocess(outputs, ready, [_size_of(items[0])])[0], items[0]


def _up_to(
    chosen: Sequence[Sample], numbers: Sequence[int], task: Task, size: tuple[int, int]
) -> Iterator[tuple[int, Batch, list[Item]]]:
    """Yield the samples with these numbers, and in streams also all earlier frames."""
    spans = [range(number, number + 1) for number in numbers]
    if task.prompting is not None:
        wanted = [(stream, [number for number in numbers if number in stream]) for stream in streams_of(chosen)]
        spans = [range(stream.start, max(inside) + 1) for stream, inside in wanted if inside]
    for span in spans:
        batches = native_batches([chosen[number] for number in span], size, task, first=span.start)
        for number, (batch, items) in zip(span, batches, strict=True):
            yield number, batch, items


def native_batches(
    chosen: Sequence[Sample], size: tuple[int, int], task: Task, *, prefix: str = "", first: int = 0
) -> Iterator[tuple[Batch, list[Item]]]:
    """Yield samples as batches of one with the sample at its original size, named ``prefix``, number, sample's name."""

    def read(number: int) -> Item:
        sample = chosen[number] if task.prompting is None else chosen[number].current
        item = read_sample(sample)
        name = f"{prefix}{first + number:04d}-{item.name}".replace("/", "_")
        return replace(item, name=name)

    def prepare(item: Item) -> Tensor:
        return network_input(item.images, *size)

    if task.prompting is not None:
        for stream in streams_of(chosen):
            yield from stream_batches(task, chosen, read, prepare, stream)
        return
    for number in range(len(chosen)):
        item = read(number)
        yield {"image": prepare(item)}, [item]


def network_input(images: np.ndarray, height: int, width: int) -> Tensor:
    """Resize uint8 RGB frames (T, H, W, 3) bilinearly to float32 (1, 3, height, width), or (1, T, ...), in [0, 1]."""
    small = torch.from_numpy(np.stack([resize_image(image, height, width) for image in images]))
    frames = small.permute(0, 3, 1, 2).float() / 255  # (T, H, W, 3) -> (T, 3, H, W)
    return frames if len(frames) == 1 else frames[None]  # a clip: (1, T, 3, H, W)


def batch_count(dataset: SampleDataset, task: Task, *, batch_size: int = BATCH) -> int:
    """Return the number of batches of `small_batches`."""
    if task.spec.targets_of == "sequence":  # sequences differ in length, so that each is a batch
        batch_size = 1
    return math.ceil(len(dataset) / batch_size) if task.prompting is None else len(dataset)


def small_batches(dataset: SampleDataset, task: Task, *, batch_size: int = BATCH) -> Iterator[tuple[Batch, list[Item]]]:
    """Yield a dataset in order, in batches, with the samples at the network's input size."""

    def read(number: int) -> Item:
        sample = dataset.samples[number]
        return Item(*dataset.arrays(number), name=str(number), video=sample.video, number=sample.index)

    def prepare(item: Item) -> Tensor:
        return network_input(item.images[-1:], *item.images.shape[1:3])

    if task.prompting is not None:
        for stream in streams_of(dataset.samples):
            yield from stream_batches(task, dataset.samples, read, prepare, stream)
        return
    size = 1 if task.spec.targets_of == "sequence" else batch_size
    for start in range(0, len(dataset), size):
        items = [read(number) for number in range(start, min(start + size, len(dataset)))]
        yield collate([to_tensors(item.images, {}) for item in items]), items


def _run(network: nn.Module, scorer: Scorer, batches: Iterable[tuple[Batch, list[Item]]]) -> None:
    with _evaluating(network) as where:
        for batch, items in batches:
            ready = scorer.add_randomness({key: value.to(where) for key, value in batch.items()})
            parts = [ready]
            if where.type == "cpu" and len(items) > 1:
                size = max(1, CPU_PIXELS // math.prod(ready["image"].shape[-2:]))
                parts = [{key: value[i : i + size] for key, value in ready.items()} for i in range(0, len(items), size)]
            outputs = [scorer.predict(network, part).float() for part in parts]
            scorer.add(torch.cat(outputs) if len(outputs) > 1 else outputs[0], ready, items)


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[torch.device]:
    """Put a network into evaluation mode, without gradients, and yield its device."""
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield next((p.device for p in network.parameters()), torch.device("cpu"))  # a baseline has no parameter
    finally:
        network.train(was_training)


def _size_of(item: Item) -> tuple[int, int]:
    """Return the (height, width) of a sample's pixel-wise label, or of its frame without such a label."""
    return next((t.shape[-2:] for t in maps_of(item.targets).values()), item.images.shape[1:3])


def write_picture(path: Path, picture: np.ndarray) -> None:
    """Write uint8 RGB (H, W, 3), or one channel (H, W) of uint8 or uint16, as PNG, atomically."""
    write_bytes(path, encoded(picture, ".png"))


def first_value(task: Task, scores: Mapping[str, Any]) -> float:
    """Return the mean of the selection metric, or NaN if it is missing."""
    value = (scores.get(task.metrics[0].name) or {}).get("mean")
    return math.nan if value is None else float(value)


def json_values(value: Any) -> Any:
    """Convert numpy values to JSON values, and NaN and infinity to None."""
    if isinstance(value, dict):
        return {key: json_values(item) for key, item in value.items()}
    if isinstance(value, (np.integer, int)):
        return int(value)
    if isinstance(value, (np.floating, float)):
        return float(value) if math.isfinite(value) else None
    return value
