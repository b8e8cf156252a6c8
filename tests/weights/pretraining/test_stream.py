"""Batches depend only on the seed and the group; each frame of a batch is from another video."""

import numpy as np
import pytest
import torch

from shared_components.data.samples import SampleSpec
from shared_components.scenes.scene import SceneFrame
from shared_components.weights.pretraining import stream
from shared_components.weights.pretraining.plan import Phase
from shared_components.weights.pretraining.stream import Groups, batches, held_out
from tests.federation.conftest import same
from tests.weights.pretraining.conftest import tiny

pytestmark = pytest.mark.slow

SEGMENTATION = SampleSpec()
CLIPS = SampleSpec(frames=3, interval=0.25)


@pytest.fixture
def rendered(monkeypatch):
    """Replace videos by flat grey frames with the level ten times the video's number, plus the frame's."""
    asked = []

    def render_video(look, seed, *, frames, height, width, rate, things=()):
        asked.append({"look": look, "seed": seed, "frames": frames, "size": (height, width), "rate": rate})
        level = 10 * len(asked)
        for index in range(frames):
            ids = np.full((height, width), index % 4, np.uint8)
            image = np.full((height, width, 3), level + index, np.uint8)
            yield SceneFrame(image, ids, ids, np.full((height, width), 50.0, np.float32), 0, (), (), 0, ids)

    monkeypatch.setattr(stream, "render_video", render_video)
    return asked


def plain(**changes):
    return tiny(moved=0.0, colour=0.0, **changes)


def levels(batch):
    return [round(float(image.mean()) * 255) for image in batch["image"]]


def equal(one, other):
    return len(one) == len(other) and all(map(same, one, other))


def test_every_frame_of_a_batch_is_of_another_video_and_the_next_batch_shows_their_next_frames(rendered):
    drawn = list(batches(plain(phases=(Phase(64, 64, 7),), batch=3), SEGMENTATION))
    assert [levels(batch) for batch in drawn] == [
        [10, 20, 30], [11, 21, 31], [12, 22, 32], [40, 50, 60], [41, 51, 61], [42, 52, 62], [70, 80, 90],
    ]  # fmt: skip
    assert [int(batch["label"][0, 0, 0]) for batch in drawn] == [0, 1, 2, 0, 1, 2, 0]


def test_clips_of_a_video_begin_a_frame_later_each_and_have_the_label_of_their_last_frame(rendered):
    settings = plain(phases=(Phase(64, 64, 4),), batch=2)
    drawn = list(batches(settings, CLIPS))
    assert [tuple(batch["image"].shape) for batch in drawn] == [(2, 3, 3, 64, 64)] * 4
    clips = [[[round(float(x.mean()) * 255) for x in clip] for clip in batch["image"]] for batch in drawn]
    assert clips == [
        [[10, 11, 12], [20, 21, 22]], [[11, 12, 13], [21, 22, 23]],
        [[12, 13, 14], [22, 23, 24]], [[30, 31, 32], [40, 41, 42]],
    ]  # fmt: skip
    assert [batch["label"][:, 0, 0].tolist() for batch in drawn] == [[2, 2], [3, 3], [0, 0], [2, 2]]
    assert {(asked["rate"], asked["frames"]) for asked in rendered} == {(4.0, 3 + 2)}  # frames 0.25 s apart


def test_the_frames_of_a_clip_are_moved_and_coloured_alike():
    settings = tiny(moved=1.0, colour=1.0, phases=(Phase(64, 64, 1),))
    still = {"look": "rose", "seed": 3, "frames": 1, "height": 96, "width": 96, "rate": 1.0}
    frame = next(stream.render_video(**still))
    sample = Groups(settings, CLIPS)._sample([frame] * 3, settings.phases[0], torch.Generator().manual_seed(1))
    assert all(torch.equal(sample["image"][0], sample["image"][number]) for number in (1, 2))


def test_batches_have_the_form_of_a_sites_own(rendered):
    batch = next(batches(plain(), SampleSpec(("label", "depth"))))
    assert {name: (value.shape, value.dtype) for name, value in batch.items()} == {
        "image": ((2, 3, 64, 64), torch.float32), "label": ((2, 64, 64), torch.int64),
        "depth": ((2, 64, 64), torch.float32),
    }  # fmt: skip


def test_videos_are_rendered_larger_seconds_apart_and_none_twice(rendered):
    list(batches(plain(batch=4), SEGMENTATION))
    assert {asked["size"] for asked in rendered} == {(96, 96), (96, 144)}
    assert all(asked["rate"] <= 0.5 and asked["frames"] == 3 for asked in rendered)
    assert len({asked["seed"] for asked in rendered}) == len(rendered) == 20
    assert [asked["look"] for asked in rendered[:4]] == ["rose", "violet", "rose", "violet"]


def test_without_looks_of_ones_own_each_video_has_a_new_one_below_the_reserved(rendered):
    list(batches(plain(looks=(), phases=(Phase(64, 64, 30),)), SEGMENTATION))
    numbers = [int(asked["look"].removeprefix("random-")) for asked in rendered]
    assert len(set(numbers)) == len(numbers) == 20
    assert max(numbers) < stream.RESERVED and max(numbers) > stream.RESERVED / 2
    assert max(asked["seed"] for asked in rendered) < stream.HELD_OUT


def test_families_of_looks_take_turns_and_each_video_has_a_new_one(rendered):
    looks = ("surgery-*", "rose", "microscope-*", "surgery-*")
    list(batches(plain(looks=looks, batch=4, phases=(Phase(64, 64, 6),)), SEGMENTATION))
    asked = [video["look"] for video in rendered]
    assert [look.split("-")[0] for look in asked] == ["surgery", "rose", "microscope", "surgery"] * 2
    drawn = [look for look in asked if look != "rose"]
    assert len(set(drawn)) == 6 and max(int(look.split("-")[1]) for look in drawn) < stream.RESERVED


def test_held_out_frames_are_of_videos_that_are_never_trained_on(rendered):
    items = held_out("random-1000003", 3, size=(64, 96), spec=SEGMENTATION, count=2)
    assert rendered[0]["seed"] == stream.HELD_OUT + 3 and rendered[0]["look"] == "random-1000003"
    assert [item.images.shape for item in items] == [(1, 64, 96, 3)] * 2
    assert [item.targets["label"].shape for item in items] == [(64, 96)] * 2
    clips = held_out("random-1000003", 3, size=(64, 96), spec=CLIPS, count=2)
    assert [item.images.shape for item in clips] == [(3, 64, 96, 3)] * 2
    everywhere = SampleSpec(("label", "depth"), frames=3, interval=0.25, targets_of="all")
    (_, second) = held_out("rose", 0, size=(64, 96), spec=everywhere, count=2)
    assert second.targets["label"][:, 0, 0].tolist() == [1, 2, 3] and second.targets["depth"].shape == (3, 64, 96)
    batch = next(batches(plain(), everywhere))
    assert batch["label"].shape == batch["depth"].shape == (*batch["image"].shape[:2], *batch["image"].shape[-2:])


@pytest.mark.parametrize("begin", [0, 2, 3, 8, 11, 12])
def test_batches_from_a_step_on_are_the_same_as_in_one_go(begin):
    whole = list(batches(tiny(), SEGMENTATION))
    assert equal(list(batches(tiny(), SEGMENTATION, begin=begin)), whole[begin:])


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # of more processes than cores
def test_the_number_of_workers_does_not_matter():
    alone = list(batches(tiny(), SEGMENTATION))
    assert len(alone) == 12 and [batch["image"].shape[-1] for batch in alone] == [64] * 7 + [96] * 5
    assert equal(list(batches(tiny(), SEGMENTATION, workers=2)), alone)


def test_a_group_follows_from_the_seed_and_its_number_alone():
    groups, again = Groups(tiny(), SEGMENTATION), Groups(tiny(), SEGMENTATION)
    torch.manual_seed(99)
    last = groups[3]
    assert equal([again[3]], [last]) and not torch.equal(again[2]["image"][:1], again[3]["image"][:1, ..., :64])
    assert not torch.equal(Groups(tiny(seed=6), SEGMENTATION)[3]["image"], last["image"])


def test_frames_and_labels_are_moved_together_and_colours_change_no_label():
    settings = plain(), tiny(moved=1.0, colour=0.0), tiny(moved=1.0, colour=1.0)
    a, b, c = (next(batches(one, SEGMENTATION)) for one in settings)
    assert not torch.equal(a["label"], b["label"]) and not torch.equal(a["image"], b["image"])
    assert torch.equal(b["label"][0], c["label"][0]) and not torch.equal(b["image"][0], c["image"][0])
