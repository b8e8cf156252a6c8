"""A clip has the frames before a frame, at the required interval, or one sentence explains why it cannot."""

import numpy as np
import pytest
import torch

from shared_components.commands import check_data
from shared_components.data import dataset as dataset_module
from shared_components.data.check import check_site, readable_samples
from shared_components.data.dataset import SampleDataset, batches, once
from shared_components.data.profile_items import style_statistics
from shared_components.data.readers import find_reader
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import load_site
from tests.data.conftest import FOUR, H, W, canonical_mask, depth_map, numbers, run_command, write

PAIR = SampleSpec(frames=2, interval=0.5)  # every number at 2 a second


@pytest.fixture
def dense(make_site):
    """Make a SAR-RARP50 site with a single video: an image every 6 numbers from 0 to 126, labels at 0, 60, 120."""

    def make(**changes: object) -> Site:
        path = make_site("sar_rarp50", frames=3, split={"train": ["video_1"]}, **changes)
        for number in range(0, 132, 6):
            rgb = path.parent / f"data/train1/video_1/rgb/{number:09d}.png"
            write(rgb, np.full((H, W, 3), number, dtype=np.uint8))
        return load_site(path)

    return make


def test_a_clip_is_four_frames_at_the_interval_and_clips_of_labels_step_over_other_frames(dense):
    listed = samples(dense(), "train", FOUR)
    assert [numbers(sample) for sample in listed] == [
        [0, 0, 0, 0],  # nothing came before: the first frame is repeated
        [24, 36, 48, 60],
        [84, 96, 108, 120],
    ]
    assert [sample.index for sample in listed] == [0, 60, 120]
    images = read_sample(listed[1]).images
    assert images.shape == (4, 64, 80, 3)
    assert images[:, 0, 0, 0].tolist() == [24, 36, 48, 60]
    spec = SampleSpec(frames=2, interval=1.0, targets_of="all")
    assert [numbers(sample) for sample in samples(dense(), "train", spec)] == [[0, 0], [0, 60], [60, 120]]
    with pytest.raises(SiteError, match=r"of sar_rarp50 has a labelled frame every 1 s .* ask for a multiple of 1 s"):
        samples(dense(), "train", SampleSpec(frames=2, interval=0.2, targets_of="all"))
    still = samples(dense(history=False), "train", SampleSpec(frames=2, interval=0.2, targets_of="all"))
    assert read_sample(still[2]).targets["label"].shape == (2, H, W)


@pytest.mark.parametrize(("spec", "changes", "expected"), [
    (SampleSpec(frames=4, interval=0.5), {}, [[0] * 4, [0, 0, 30, 60], [30, 60, 90, 120]]),
    # FedST, Section 4.1.3: the current frame is duplicated in the slots that no frame fills, and in no other
    (SampleSpec((), frames=4, interval=0.1, padding="current"),
     {},
     [[0, 0, 0, 0], [6, 6, 0, 6], [12, 0, 6, 12], [0, 6, 12, 18], [6, 12, 18, 24]]),
    (SampleSpec((), frames=3, interval=0.1), {}, [[0, 0, 0], [0, 0, 6], [0, 6, 12]]),  # every image ends a clip
    (SampleSpec(frames=3, interval=0.123), {"history": False}, [[0] * 3, [60] * 3, [120] * 3]),
], ids=["first repeated", "current repeated", "without targets", "history refused"])  # fmt: skip
def test_history_that_is_too_short_is_repeated(spec, changes, expected, dense):
    site = dense(**changes)
    listed = samples(site, "train", spec)
    assert [numbers(sample) for sample in listed[: len(expected)]] == expected
    assert len(listed) == (3 if spec.targets else 22)
    assert numbers(listed[-1])[-1] == (120 if spec.targets else 126)
    (batch,) = once(dataset_of(site, spec), batch_size=32, generator=torch.Generator())
    assert list(batch) == ["image", *spec.targets] and batch["image"].shape == (len(listed), spec.frames, 3, 64, 80)


@pytest.mark.parametrize(("padding", "second"), [("first", "frame004"), ("current", "frame005")])
def test_no_clip_crosses_the_start_of_a_range_into_another_split(make_site, padding, second):
    split = {"train": [{"instrument_dataset_1": [0, 4]}], "test": [{"instrument_dataset_1": [4, 8]}]}
    site = load_site(make_site(frames=8, split=split))
    spec = SampleSpec(frames=3, interval=0.5, padding=padding)
    seen = {name: samples(site, name, spec) for name in ("train", "test")}
    assert [path.stem for path in seen["test"][0].images] == ["frame004"] * 3
    assert [path.stem for path in seen["test"][1].images] == [second, "frame004", "frame005"]
    shown = {name: {path for sample in listed for path in sample.images} for name, listed in seen.items()}
    assert not shown["train"] & shown["test"]


def test_an_interval_that_numbers_or_images_cannot_give_is_refused_with_a_remedy(make_site, tmp_path):
    path = make_site()
    with pytest.raises(SiteError) as error:
        samples(load_site(path), "train", FOUR)
    assert str(error.value) == (
        f"site hospital-a: {path}: the task needs clips of 4 frames 0.2 s apart, but instrument_dataset_1 of "
        "endovis2017 has an image every 0.5 s (every 1 numbers, 2 numbers a second); ask for a multiple of "
        "0.5 s, unpack more of its images, or write 'history: false' in it, which repeats the frame"
    )
    path = make_site("sar_rarp50")
    for image in (tmp_path / "data").rglob("rgb/*6.png"):
        image.unlink()  # 1 Hz is left
    with pytest.raises(SiteError, match=r"has an image every 1 s \(every 60 numbers, 60 numbers a second\)"):
        samples(load_site(path), "train", FOUR)


@pytest.mark.parametrize("dataset", ["endovis2015_rigid", "pfedsis_npy", "sisvse"])
def test_an_unknown_rate_is_asked_for_and_never_guessed(dataset, make_site):
    path = make_site(dataset)
    with pytest.raises(SiteError, match=f"the rate of {dataset}'s frame numbers is not known; write 'rate'"):
        samples(load_site(path), "train", PAIR)


def test_frames_out_of_order_are_refused(make_site, monkeypatch):
    site = load_site(make_site())
    reader = find_reader("endovis2017")
    listing = reader.frames(site.root, "instrument_dataset_1")
    monkeypatch.setattr(reader, "frames", lambda root, video: [listing[0], listing[2], listing[1]])
    with pytest.raises(SiteError, match="instrument_dataset_1 has frame 1 after frame 2; number its frames"):
        samples(site, "train", PAIR)


def test_an_image_missing_between_others_is_a_problem_of_the_clips_that_show_it(dense, capsys):
    site = dense()
    hole = samples(site, "train", FOUR)[1].images[2]
    hole.unlink()

    (problem,) = check_site(site, FOUR, full=True)
    (quick,) = check_site(site, FOUR, full=False)

    assert str(problem) == str(quick)
    assert str(problem) == (
        f"site hospital-a: {hole}: file is missing, and clips show it; put it back or take the video out of "
        "the split, or write 'history: false' in site.yaml, which repeats the frame"
    )
    assert (problem.sample.video, problem.sample.index) == ("video_1", 60)
    assert check_site(site) == []  # no harm where single frames are asked for
    assert run_command(check_data, site.path, "--frames", "4", "--interval", "0.2") == 1
    assert str(problem) in capsys.readouterr().out


def test_clips_that_show_a_bad_image_can_be_set_aside_and_an_earlier_frame_of_another_size_is_refused(dense):
    site = dense(frame_interval=1, quarantine=0.2)
    spec = SampleSpec((), frames=2, interval=0.1)
    samples(site, "train", spec)[21].images[-1].write_bytes(b"")  # the last image: one clip of 22 shows it
    readable, aside = readable_samples(site, "train", spec)
    assert (len(readable), [sample.index for sample in aside]) == (21, [126])
    sample = samples(site, "train", FOUR)[1]
    write(sample.images[0], np.zeros((4, 6, 3), dtype=np.uint8))
    (problem,) = check_site(site, FOUR)
    assert problem.file == sample.images[0]
    with pytest.raises(SiteError, match=r"earlier frame is 6x4 but its image .*000000060\.png is 80x64"):
        read_sample(sample)


@pytest.mark.parametrize(("frames", "interval"), [(0, 0.0), (2, 0.0), (2, -1.0), (2, float("nan"))])
def test_a_clip_without_frames_or_time_between_them_is_refused(frames, interval):
    with pytest.raises(ValueError, match=r"a sample cannot have .* frames"):
        SampleSpec(frames=frames, interval=interval)
    with pytest.raises(ValueError, match="targets_of 'first' is unknown; use one of last, all"):
        SampleSpec(targets_of="first")


@pytest.mark.parametrize(("padding", "shown"), [
    ("first", [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]), ("current", [[0, 0, 0], [1, 0, 1], [0, 1, 2], [1, 2, 3]]),
])  # fmt: skip
def test_every_frame_of_a_clip_has_its_target_and_padding_has_the_target_of_its_frame(make_site, padding, shown):
    site, spec = load_site(make_site()), SampleSpec(frames=3, interval=0.5, padding=padding, targets_of="all")
    listed, masks = samples(site, "train", spec), [canonical_mask(number) for number in range(4)]
    assert [numbers(sample) for sample in listed] == shown
    for sample, clip in zip(listed, shown, strict=True):
        np.testing.assert_array_equal(read_sample(sample).targets["label"], np.stack([masks[n] for n in clip]))
    (batch,) = once(dataset_of(site, spec), batch_size=4, generator=torch.Generator())
    assert (batch["image"].shape, batch["label"].shape) == ((4, 3, 3, 64, 80), (4, 3, 64, 80))
    np.testing.assert_array_equal(batch["label"], np.stack([[masks[n] for n in clip] for clip in shown]))


@pytest.mark.parametrize("listed", [True, False], ids=["image without label", "neither"])
def test_a_label_that_an_earlier_frame_of_a_clip_lacks_is_named(make_site, listed):
    site = load_site(make_site("endovis2018"))
    spec = SampleSpec(frames=2, interval=0.5, targets_of="all")
    folder = site.root / "miccai_challenge_release_2/seq_1"
    (folder / "labels/frame001.png").unlink()
    if not listed:
        (folder / "left_frames/frame001.png").unlink()
    problems = [problem for problem in check_site(site, spec) if problem.split == "train"]
    files = {problem.file.relative_to(folder).as_posix() for problem in problems}
    assert files == {"labels/frame001.png"} | (set() if listed else {"left_frames/frame001.png"})
    assert {problem.sample.index for problem in problems} == ({1, 2} if listed else {2})
    with pytest.raises(SiteError, match=r"frame001\.png: file is missing"):
        read_sample(samples(site, "train", spec)[-2])


def dataset_of(site: Site, spec: SampleSpec, **options: int) -> SampleDataset:
    return SampleDataset(samples(site, "train", spec), height=64, width=80, site=site, **options)


def drawn(dataset: SampleDataset, *, batch_size: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return next(batches(dataset, batch_size=batch_size, iterations=1, generator=generator, augment=True))


def test_clips_in_batches_are_augmented_alike_and_end_with_the_single_frames(dense):
    batch = drawn(dataset_of(dense(), FOUR), batch_size=6, seed=1)
    assert (batch["image"].shape, batch["image"].dtype) == ((6, 4, 3, 64, 80), torch.float32)
    assert (batch["label"].shape, batch["label"].dtype) == ((6, 64, 80), torch.int64)
    for clip in batch["image"] * 255:
        current = clip[3].max()  # frames are flat in their number: what is padded is 0 in all of them
        if current > 100:
            inside = clip[3] > 0
            assert torch.equal(clip[0] > 0, inside)
            torch.testing.assert_close(clip[0][inside], clip[3][inside] - 36)
    single, clips = (dataset_of(dense(), spec) for spec in (SampleSpec(), FOUR))
    batch, batch_of_clips = (drawn(data, batch_size=8, seed=4) for data in (single, clips))
    assert torch.equal(batch["image"], batch_of_clips["image"][:, -1])
    assert torch.equal(batch["label"], batch_of_clips["label"])
    torch.testing.assert_close(style_statistics(clips), style_statistics(single))


def test_an_image_that_several_clips_show_is_decoded_once_and_a_full_cache_changes_no_pixel(dense, monkeypatch):
    site, read = dense(), []
    whole, small = dataset_of(site, FOUR), dataset_of(site, FOUR, cache_bytes=64 * 80 * 3 * 2)
    for first, second in zip(whole, small, strict=True):
        assert torch.equal(first["image"], second["image"]) and torch.equal(first["label"], second["label"])
    data, real = dataset_of(site, SampleSpec((), frames=4, interval=0.1)), dataset_module.read_image
    monkeypatch.setattr(dataset_module, "read_image", lambda sample, path: read.append(path) or real(sample, path))
    for _ in range(2):
        list(once(data, batch_size=4, generator=torch.Generator()))
    assert len(read) == len(set(read)) == 22


def test_depth_stays_float_and_unaugmented_values_stay_exact(make_site):
    data = dataset_of(load_site(make_site("scared")), SampleSpec(("depth",)))
    (whole,) = once(data, batch_size=4, generator=torch.Generator())
    batch = drawn(data, batch_size=8, seed=0)
    assert whole["depth"].dtype == batch["depth"].dtype == torch.float32
    np.testing.assert_array_equal(whole["depth"][2], depth_map(2) / np.float32(256))
    known = np.unique([depth_map(index) / 256 for index in range(4)])
    zooms = np.arange(40, 161) / 80  # every new width of a frame of 80 pixels
    for frame in batch["depth"]:  # nearest: nothing between two depths, all divided by one zoom
        values = frame.unique().double().numpy()
        apart = np.abs(values[:, None, None] - known[:, None] / zooms).min(axis=1).max(axis=0)
        assert apart.min() < 1e-4
