"""Whole videos as streams: a toy that follows boxes, against the same frames scored one by one by hand."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shared_components.core.evaluation import predicted, score_fully, score_quickly
from shared_components.core.prompted_streams import streams_of, stride_of, unseen_at_first
from shared_components.core.task import make_task
from shared_components.core.training import check_frames
from shared_components.data.dataset import SampleDataset
from shared_components.data.samples import Item, Sample, read_sample, samples
from shared_components.data.site import Source
from shared_components.data.site_file import load_site
from shared_components.networks.tiny import Tiny
from tests.federation.conftest import render

PARTS = ("background", "shaft", "wrist", "clasper")
CLIPS = {"frames": 2, "interval": 0.5, "targets_of": "all", "prompts": "first"}
SIZE = (32, 64)


@dataclass(frozen=True)
class Seen:
    """What the toy remembers: its boxes, and how many frames it was shown."""

    boxes: Tensor
    stride: int
    count: int = 0


class Boxes(nn.Module):
    """Fills the boxes that it was last given; writes down every call."""

    takes_boxes = takes_clips = True

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.calls: list[str] = []

    def begin_stream(self, boxes: Tensor, *, stride: int, padding: str) -> Seen:
        self.calls.append(f"begin {stride} {padding}")
        return Seen(boxes, stride)

    def remember(self, image: Tensor, memory: Seen, boxes: Tensor | None = None) -> tuple[Tensor, Seen]:
        assert image.shape == (1, 3, *SIZE)
        memory = Seen(memory.boxes if boxes is None else boxes, memory.stride, memory.count + 1)
        self.calls.append("boxes" if boxes is not None else "frame")
        logits = torch.zeros(1, 1 + memory.boxes.shape[1], *SIZE)
        for number, box in enumerate(memory.boxes[0], start=1):
            if not box.isnan().any():
                x0, y0, x1, y1 = (int(side) for side in box)
                logits[0, number, y0:y1, x0:x1] = number
        return logits + 0 * self.weight, memory


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory):
    [file] = render(tmp_path_factory.mktemp("scenes"), sites=1)
    return load_site(file, name="a")


def frame(number: int, video: str = "a", *, clip: tuple[int, ...] = ()) -> Sample:
    images = tuple(Path(video) / f"{n:03d}.png" for n in (*clip, number))
    return Sample("site", video, number, images, {}, Source("endovis2017"), PARTS)


def test_streams_begin_with_videos_and_stretches_and_have_the_stride_of_their_clips():
    assert streams_of([frame(0), frame(1), frame(0, "b"), frame(1, "b")]) == [range(0, 2), range(2, 4)]
    stretches = [frame(3, clip=(3,)), frame(4, clip=(3,)), frame(9, clip=(9,)), frame(10, clip=(9,))]
    assert streams_of(stretches) == [range(0, 2), range(2, 4)]
    assert streams_of([frame(n, clip=(n,)) for n in range(3)]) == [range(n, n + 1) for n in range(3)]
    assert streams_of([]) == [] and stride_of([frame(n) for n in range(3)]) == 1
    assert stride_of([frame(n, clip=(max(0, n - 10),)) for n in range(0, 60, 10)]) == 1
    assert stride_of([frame(n, clip=(max(0, n - 6), max(0, n - 3))) for n in range(8)]) == 3
    assert stride_of([frame(n, clip=(max(0, n - 1),)) for n in range(0, 9, 3)]) == 1  # frames between are not shown


def test_a_network_that_takes_no_boxes_is_refused_before_anything_is_trained():
    with pytest.raises(ValueError, match="Tiny takes no boxes; write prompts: none for it in 'tasks'"):
        check_frames(Tiny(out_channels=4), make_task("segmentation", {"prompts": "first"}, classes=PARTS))


def of_first_boxes(item, first) -> np.ndarray:
    """What the toy predicts of a video, at the network's size: the first frame's boxes, the higher class on top."""
    ids = np.zeros(first.shape, np.uint8)
    for number in range(1, 4):
        rows, columns = np.nonzero(first == number)
        if len(rows):
            ids[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = number
    return ids


def test_every_labelled_frame_of_a_video_is_scored_with_the_boxes_of_the_first_alone(site):
    task = make_task("segmentation", CLIPS, classes=PARTS)
    data = SampleDataset(samples(site, "validation", task.spec), height=SIZE[0], width=SIZE[1], site=site)
    network = Boxes()
    found = score_quickly(network, task, data)
    labels = [data.arrays(number)[1]["label"][-1] for number in range(len(data))]
    streams = streams_of(data.samples)
    assert [n for s in streams for n in s] == list(range(len(data))) and len(streams[0]) > 1
    scores = [
        task.score(of_first_boxes(None, labels[s.start]), item(labels[n]), quick=True) for s in streams for n in s
    ]
    assert found["dice"] == task.summarise(scores)["dice"]
    assert network.calls == [c for s in streams for c in ("begin 1 first", "boxes", *["frame"] * (len(s) - 1))]
    absent = {name: sum(not (labels[s.start] == n).any() for s in streams) for n, name in enumerate(PARTS) if n}
    assert found["prompts"] == {"streams": len(streams), "without_box": absent}


def test_videos_that_begin_without_an_object_are_named_and_those_of_depth_never(site, monkeypatch):
    task = make_task("segmentation", CLIPS, classes=PARTS)
    chosen = samples(site, "validation", task.spec)
    usual = read_sample(chosen[0].current)
    assert unseen_at_first(task, chosen) == [] and bool(usual.targets["label"].any())
    empty = item(np.zeros((1, 4, 4), np.uint8))
    monkeypatch.setattr("shared_components.core.prompted_streams.read_sample", lambda sample: empty)
    assert unseen_at_first(task, chosen) == [chosen[s.start].current for s in streams_of(chosen)]
    assert unseen_at_first(make_task("segmentation", classes=PARTS), chosen) == []
    monkeypatch.undo()
    monkeypatch.setattr(
        "shared_components.core.prompted_streams.read_sample",
        lambda sample: Item(usual.images, {"depth": np.zeros((1, 4, 4), np.float32)}, ""),
    )
    assert unseen_at_first(make_task("depth", {"prompts": "first"}), chosen) == []


def item(label: np.ndarray):
    return Item(np.zeros((1, *label.shape, 3), np.uint8), {"label": label}, "")


def test_boxes_on_every_second_frame_are_given_to_the_stream(site):
    task = make_task("segmentation", CLIPS | {"evaluation_prompts": "every_second"}, classes=PARTS)
    chosen = samples(site, "validation", task.spec)
    network = Boxes()
    score_fully(network, task, chosen, size=SIZE, split="validation")
    length = len(streams_of(chosen)[0])
    assert network.calls[1 : 1 + length] == ["boxes" if place % 2 == 0 else "frame" for place in range(length)]
    assert "every second frame" in task.definitions["prompts"]


def test_a_sample_is_predicted_again_as_it_was_scored(site, tmp_path: Path):
    task = make_task("segmentation", CLIPS, classes=PARTS)
    chosen = samples(site, "validation", task.spec)
    scores = score_fully(Boxes(), task, chosen, size=SIZE, split="validation", pictures=tmp_path)
    assert scores["frames"] == len(chosen) and list(tmp_path.glob("*.png"))
    [(number, answer, shown)] = predicted(Boxes(), task, chosen, [len(chosen) - 1], size=SIZE)
    whole = read_sample(chosen[number].current)
    assert np.array_equal(shown.images, whole.images) and answer.shape == whole.targets["label"].shape[-2:]
