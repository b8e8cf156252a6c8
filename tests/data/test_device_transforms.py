"""The device's augmentation of a batch does what the CPU does to each sample: same draws, same places, same colours."""

from dataclasses import replace
from functools import cache

import cv2
import numpy as np
import pytest
import torch

from shared_components.core.task import make_task
from shared_components.data import dataset as datasets
from shared_components.data import transforms
from shared_components.data.collate import collate, to_numbers
from shared_components.data.dataset import SampleDataset, batches
from shared_components.data.device_transforms import (
    augment_batch,
    colour_parameters,
    geometry_parameters,
    turn_parameters,
)
from shared_components.data.jpeg import compress
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.data.transforms import to_tensors
from shared_components.scenes.scene import render_video

H, W = 64, 80


@cache
def clips() -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Return rendered clips of two frames and their targets."""
    frames = list(render_video("narrowband", 3, frames=8, height=H, width=W))
    return [
        (
            np.stack([a.image, b.image]),
            {"label": np.stack([a.parts, b.parts]), "depth": a.depth, "phase": np.array(number), "tools": np.eye(4)[0]},
        )
        for number, (a, b) in enumerate(zip(frames[::2], frames[1::2], strict=True))
    ]


def batch_of(parameters: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """Return a batch of all clips with the parameters of each."""
    items = [{"image": image, **targets, **own} for (image, targets), own in zip(clips(), parameters, strict=True)]
    return {name: torch.from_numpy(np.stack([item[name] for item in items])) for name in items[0]}


def drawn(seed: int, count: int = 24) -> list[tuple[transforms.Augmentation, float, transforms.Colours]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            transforms.sample_augmentation(generator, width=W),
            transforms.sample_turn(generator, 25.0),
            transforms.sample_colours(generator, 1.0),
        )
        for _ in range(count)
    ]


def on_border(scaled: int, length: int, first: int) -> np.ndarray:
    """Return which new pixels of an axis have their centre on the border of two source pixels."""
    return (2 * (np.arange(length) + first) + 1) * length % (2 * scaled) == 0


def levels(batch: dict[str, torch.Tensor], number: int) -> np.ndarray:
    return batch["image"][number].permute(0, 2, 3, 1).numpy()  # (T, 3, H, W) -> (T, H, W, 3)


def test_flips_scales_and_crops_are_the_cpus():
    unlike = []
    for start in range(0, 24, 4):
        chosen = [augmentation for augmentation, _, _ in drawn(1)[start : start + 4]]
        found = augment_batch(batch_of([geometry_parameters(each, H, W) for each in chosen]))
        assert not [name for name in found if "/" in name] and found["image"].is_contiguous()
        for number, (augmentation, (image, targets)) in enumerate(zip(chosen, clips(), strict=True)):
            images, expected = transforms.augment(image, targets, augmentation)
            assert np.abs(levels(found, number) - images).max() <= 1
            scaled, top, left = augmentation.place(H, W)
            ties = on_border(scaled, H, top)[:, None] | on_border(augmentation.width, W, left)
            for name in ("label", "depth"):
                assert found[name].dtype == torch.from_numpy(expected[name]).dtype
                other = found[name][number].numpy() != expected[name]
                assert not (other & ~ties).any()
            unlike.append((found["label"][number].numpy() != expected["label"]).mean())
            assert found["phase"][number] == expected["phase"]
            assert torch.equal(found["tools"][number], torch.from_numpy(expected["tools"]))
    assert np.mean(unlike) < 0.01


@pytest.mark.parametrize(("flips", "width", "left", "expected"), [
    ((False, False), 4, 0.0, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ((True, False), 4, 0.0, [[3, 2, 1, 0], [7, 6, 5, 4]]),
    ((False, True), 4, 0.0, [[4, 5, 6, 7], [0, 1, 2, 3]]),
    ((False, False), 8, 0.4, [[1, 1, 2, 2], [1, 1, 2, 2]]),
    ((True, False), 8, 0.999, [[1, 1, 0, 0], [1, 1, 0, 0]]),
    ((False, False), 3, 0.9, [[0, 2, 3, 0], [4, 6, 7, 0]]),
])  # fmt: skip
def test_a_map_is_flipped_scaled_and_cropped_by_hand(flips, width, left, expected):
    augmentation = transforms.Augmentation(*flips, width, left, 0.0)
    mask = np.arange(8, dtype=np.uint8).reshape(1, 2, 4)
    parameters = geometry_parameters(augmentation, 2, 4)
    batch = {"image": mask[:, None, :, :, None].repeat(3, -1), "label": mask, "depth": 8 * mask.astype(np.float32)}
    batch |= {name: value[None] for name, value in parameters.items()}
    found = augment_batch({name: torch.from_numpy(value) for name, value in batch.items()})
    assert found["label"][0].tolist() == expected
    np.testing.assert_allclose(found["depth"][0], 8 * 4 / width * np.array(expected), rtol=1e-6)
    if width == 4:
        assert found["image"][0, 0].tolist() == expected


def test_turns_are_the_cpus_before_and_without_crops():
    for crops in (False, True):
        chosen = [(augmentation, degrees) for augmentation, degrees, _ in drawn(2, 4)]
        parameters = [turn_parameters(degrees, H, W) for _, degrees in chosen]
        if crops:
            parameters = [one | geometry_parameters(a, H, W) for one, (a, _) in zip(parameters, chosen, strict=True)]
        found = augment_batch(batch_of(parameters))
        for number, ((augmentation, degrees), (image, targets)) in enumerate(zip(chosen, clips(), strict=True)):
            images, expected = transforms.turn(image, targets, degrees)
            if crops:
                images, expected = transforms.augment(images, expected, augmentation)
            assert np.abs(levels(found, number) - images).max() <= (2 if crops else 1)
            assert (found["label"][number].numpy() != expected["label"]).mean() <= 0.01


STAGES = [("blur",), ("hue", "saturation"), ("gains", "gamma", "contrast", "brightness", "haze", "veil"),
          ("noise", "grain")]  # fmt: skip


@pytest.mark.parametrize("names", STAGES, ids=lambda names: names[0])
def test_each_colour_change_is_the_cpus_within_a_grey_level(names):
    for start in range(0, 24, 4):
        chosen = [
            replace(transforms.UNCHANGED, **{name: getattr(colours, name) for name in names})
            for _, _, colours in drawn(3)[start : start + 4]
        ]
        found = augment_batch(batch_of([colour_parameters(each, H, W) for each in chosen]))
        for number, (colours, (image, targets)) in enumerate(zip(chosen, clips(), strict=True)):
            difference = np.abs(levels(found, number) - transforms.change_colours(image, colours))
            assert difference.max() <= 1 and difference.mean() < 0.15
            assert torch.equal(found["label"][number], torch.from_numpy(targets["label"]))


def test_all_changes_together_stay_within_the_stated_means():
    means, moved = [], []
    for start in range(0, 24, 4):
        chosen = drawn(4)[start : start + 4]
        found = augment_batch(
            batch_of(
                [
                    geometry_parameters(a, H, W) | turn_parameters(d, H, W) | colour_parameters(c, H, W)
                    for a, d, c in chosen
                ]
            )
        )
        for number, ((augmentation, degrees, colours), (image, targets)) in enumerate(
            zip(chosen, clips(), strict=True)
        ):
            images, _ = transforms.augment(*transforms.turn(image, targets, degrees), augmentation)
            changed = transforms.change_colours(images, colours)
            means.append(np.abs(levels(found, number) - changed).mean())
            moved.append(np.abs(changed.astype(float) - images).mean())
    assert max(means) < 2 and np.mean(means) < 0.5 and np.mean(moved) > 10


@pytest.mark.parametrize("quality", [95, 60, 20, 3])
def test_a_compression_loses_what_jpeg_loses(quality):
    noise = np.random.default_rng(0).normal(0, 6, (H, W - 9, 3))
    frames = [clips()[number][0][0][:, 9:] for number in (0, 1)]
    frames = [(frame + noise).clip(0, 255).astype(np.uint8) for frame in frames]
    found = compress(torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2).float(), torch.tensor([quality, 100]))
    for frame, ours, q in zip(frames, found.permute(0, 2, 3, 1).numpy(), (quality, 100), strict=True):
        theirs = cv2.imdecode(cv2.imencode(".jpg", frame, (cv2.IMWRITE_JPEG_QUALITY, q))[1], cv2.IMREAD_COLOR)
        lost = np.abs(theirs.astype(float) - frame).mean()
        assert np.abs(ours - theirs).mean() < lost / 5


OPTIONS = [
    {"augment": False},
    {"augment": True, "flips": False, "crops": False},
    {"augment": True},
    {"augment": True, "rotation": 20.0, "colour": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options))
def test_a_device_draws_the_same_batches_for_any_number_of_workers(make_site, monkeypatch, options):
    site = load_site(make_site(frames=5))
    dataset = SampleDataset(samples(site, "train"), height=32, width=40, site=site)

    def stream(workers=0):
        generator = torch.Generator().manual_seed(6)
        drawn = batches(dataset, batch_size=3, iterations=4, generator=generator, workers=workers, **options)
        return [*drawn], generator.get_state()

    expected, state = stream()
    monkeypatch.setattr(datasets, "AUGMENTING_DEVICES", ("cpu",))
    found, own_state = stream()
    assert torch.equal(own_state, state)
    for ours, theirs in zip(found, expected, strict=True):
        assert [(n, v.shape, v.dtype) for n, v in ours.items()] == [(n, v.shape, v.dtype) for n, v in theirs.items()]
        assert all(value.is_contiguous() for value in ours.values())
        difference = (ours["image"] - theirs["image"]).abs() * 255
        same = not options.get("crops", options["augment"])
        assert difference.max() == 0 if same else difference.mean() < 1
        assert (ours["label"] != theirs["label"]).float().mean() <= (0 if same else 0.02)
    for ours, theirs in zip(stream(workers=3)[0], found, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_native_crops_stay_on_the_cpu_and_their_colours_do_not(make_site, monkeypatch):
    site = load_site(make_site())
    bare = [replace(sample, targets={}) for sample in samples(site, "train")]
    dataset = SampleDataset(bare, height=32, width=40, site=site)

    def first(**options):
        generator = torch.Generator().manual_seed(2)
        return next(batches(dataset, batch_size=4, iterations=1, generator=generator, augment=True, **options))["image"]

    expected = [first(crop_area=0.3), first(crop_area=0.3, colour=0.3)]
    monkeypatch.setattr(datasets, "AUGMENTING_DEVICES", ("cpu",))
    assert torch.equal(first(crop_area=0.3), expected[0])
    assert (first(crop_area=0.3, colour=0.3) - expected[1]).abs().mean() * 255 < 1


CLIPS = {"frames": 2, "interval": 1.0, "targets_of": "all", "padding": "first"}
TASKS = [
    ("segmentation", {**CLIPS, "prompts": "first", "jitter": 0.1}),
    ("depth", {"prompts": "first"}),
    ("reconstruction", {"patch": 16}),
]


@pytest.mark.parametrize(("kind", "options"), TASKS, ids=lambda value: value if isinstance(value, str) else "")
def test_prompts_and_hidden_patches_of_tasks_do_not_depend_on_where_frames_are_flipped(kind, options):
    task = make_task(kind, options, classes=("background", "a", "b", "c") if kind == "segmentation" else ())
    flips = [replace(augmentation, width=W) for augmentation, _, _ in drawn(5, 4)]
    found = to_numbers(augment_batch(batch_of([geometry_parameters(flip, H, W) for flip in flips])))
    items = [to_tensors(*transforms.augment(*clip, flip)) for clip, flip in zip(clips(), flips, strict=True)]
    ours, theirs = (task.add_randomness(batch, torch.Generator().manual_seed(1)) for batch in (found, collate(items)))
    assert list(ours) == list(theirs) and len(ours) > len(found)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)  # absent objects have no box
