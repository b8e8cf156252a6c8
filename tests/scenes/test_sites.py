"""Rendered sites read back in every layout, for every task and with clips; what an earlier rendering leaves behind."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import yaml

from shared_components.commands import check_data, render
from shared_components.data.check import check_site
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.scenes.anatomy import THINGS
from shared_components.scenes.layouts import LAYOUTS, TARGETS, schedule
from shared_components.scenes.motion import PHASES
from shared_components.scenes.scene import SceneFrame, render_video
from shared_components.scenes.site import DEPTH_RANGE, plan_sites, remove_sites, tile, video_seed, write_site
from tests.data.conftest import numbers, run_command

pytestmark = pytest.mark.slow

SIZE = {"height": 64, "width": 96}
VIDEOS = {"train": 1, "validation": 1, "test": 1}
PICTURES = [name for name, layout in LAYOUTS.items() if not layout.operation]
"""Layouts whose labels are pictures; of the others see `test_operations`."""
FILMS = [name for name in PICTURES if not LAYOUTS[name].stills]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory) -> Callable[..., Path]:
    """Return `site_of` in a folder of its own, which renders equal sites once."""

    @cache
    def render(layout: str, task: str = "segmentation", **changes: object) -> Path:
        return site_of(tmp_path_factory.mktemp("rendered") / "site", layout, task, **changes)

    return render


def site_of(out: Path, layout: str, task: str = "segmentation", **changes: object) -> Path:
    arguments = {"look": "violet", "seed": 5, "videos": VIDEOS, "frames_per_video": 4, **SIZE, **changes}
    return write_site(out, layout=layout, task=task, **arguments)


def scene_of(layout: str, look: str = "violet", frames: int = 4, rate: float | None = None) -> list[SceneFrame]:
    """Render the frames of a site's first video, at the layout's rate of labelled frames."""
    style = LAYOUTS[layout]
    film = {"frames": frames, "rate": rate or style.rate, "things": style.things, **SIZE}
    return list(render_video(look, video_seed(5, 1), **film))


def pixels(path: Path) -> np.ndarray:
    return cv2.imread(str(path), cv2.IMREAD_UNCHANGED)


def run(*words: object) -> int:
    small = ("--height", "64", "--width", "96", "--frames", "2", "--videos", "1,1,0")
    return run_command(render, *words, *small)


@pytest.mark.parametrize("layout", PICTURES)
def test_a_site_reads_back_exactly_through_the_shared_readers(layout, rendered):
    task = "depth" if LAYOUTS[layout].target == "depth" else "segmentation"
    site, spec = load_site(rendered(layout, task)), SampleSpec(TARGETS[task])

    assert site.dataset == (LAYOUTS[layout].dataset or layout) and (
        task == "segmentation" or (site.task, site.classes) == ("depth", ())
    )
    assert check_site(site, spec) == [] and site.publish == ("style", "text_vector", "model")
    for stored, frame in zip(samples(site, "train", spec), scene_of(layout), strict=True):
        item = read_sample(stored)
        error = np.abs(item.images[0].astype(int) - frame.image)
        assert error.mean() < 2 if stored.images[0].suffix == ".jpg" else not error.any()
        if task == "segmentation":
            np.testing.assert_array_equal(item.targets["label"], LAYOUTS[layout].ids(frame))
            continue
        np.testing.assert_allclose(item.targets["depth"], frame.depth, atol=1 / 256)
        assert np.array_equal(item.targets["depth"] == 0, frame.depth == 0)  # outside the aperture: unknown
        assert (frame.depth == 0).any()
    assert len(samples(site, "validation", spec)) == len(samples(site, "test", spec)) == 4


def test_endovis2017_masks_lie_per_instrument_and_add_up(rendered):
    video = rendered("endovis2017", look="rose", frames_per_video=8).parent / "endovis2017/instrument_dataset_1"
    scene = scene_of("endovis2017", "rose", 8)
    folders = sorted((video / "ground_truth").iterdir())
    assert {folder.name for folder in folders} == {f"{t}_labels" for frame in scene for t in frame.tools}
    for index, frame in enumerate(scene):
        masks = [pixels(folder / f"frame{index:03d}.png") for folder in folders]
        assert np.array_equal(np.max(masks, 0), 10 * frame.parts)


def test_endovis2018_has_the_colours_of_labels_json_and_side_files_with_depth_in_256ths_of_a_millimetre(rendered):
    site, frame = rendered("endovis2018").parent, scene_of("endovis2018")[0]
    classes = {tuple(c["color"]): c["classid"] for c in json.loads((site / "endovis2018/labels.json").read_text())}
    assert classes[(0, 255, 255)] == 2 and classes[(125, 255, 12)] == 3 and len(classes) == 12
    label = pixels(site / "endovis2018/seq_1/labels/frame000.png")[..., ::-1]
    assert {classes[tuple(map(int, colour))] for colour in np.unique(label.reshape(-1, 3), axis=0)} <= {0, 1, 2, 3}
    depth = pixels(site / "side/seq_1/depth/frame000.png")
    assert depth.dtype == np.uint16
    np.testing.assert_allclose(depth / 256.0, frame.depth, atol=1 / 256)
    header, first, *_ = (site / "side/seq_1/frames.csv").read_text().splitlines()
    assert header == "frame,phase,phase_name,tools,actions,gesture"
    assert first.startswith(f"frame000,{frame.phase},{PHASES[frame.phase]},{';'.join(frame.tools)},")


def test_sar_rarp50_numbers_are_multiples_of_60_and_actions_are_at_10_hz(rendered):
    video = rendered("sar_rarp50").parent / "sar_rarp50/video_1"
    for folder in ("rgb", "segmentation"):
        assert sorted(path.name for path in (video / folder).iterdir()) == [f"{60 * i:09d}.png" for i in range(4)]
    rows = [tuple(map(int, row.split(","))) for row in (video / "action_discrete.txt").read_text().split()]
    assert [row[0] for row in rows] == list(range(0, 240, 6))
    assert {row[1] for row in rows} <= set(range(8))


def test_grasp_masks_tell_the_kinds_of_instruments_and_cover_their_parts(rendered):
    folder = rendered("grasp", look="rose", frames_per_video=8).parent / "grasp/annotations/segmentations/CASE101"
    kinds = {"Bipolar": 1, "Prograsp": 2, "Needle": 3, "Scissors": 4}
    seen = set()
    for second, frame in enumerate(scene_of("grasp", "rose", 8)):
        mask = pixels(folder / f"{30 * second:09d}.png")
        assert np.array_equal(mask > 0, frame.parts > 0)
        for instance, tool_name in enumerate(frame.tools, start=1):
            (expected,) = (number for kind, number in kinds.items() if kind in tool_name)
            assert set(mask[frame.instances == instance]) == {expected}
            seen.add(expected)
    assert len(seen) > 1


@pytest.mark.parametrize("layout", PICTURES)
def test_a_reconstruction_site_has_no_label_files_in_any_layout(layout, tmp_path):
    site, spec = load_site(site_of(tmp_path / "site", layout, "reconstruction")), SampleSpec(())
    listed = [sample for split in VIDEOS for sample in samples(site, split, spec)]
    files = {path for path in site.root.rglob("*") if path.is_file()}
    assert files == {path for sample in listed for path in sample.images}
    assert len(listed) == 12 and check_site(site, spec) == []


@pytest.mark.parametrize(("layout", "task", "rate", "every", "step"), [
    ("sar_rarp50", "segmentation", 5.0, 5, 12), ("grasp", "segmentation", 5.0, 5, 6), ("scared", "depth", 5.0, 2, 5),
    ("endovis2018", "segmentation", 5.0, 1, 1),  # as dense as its clips: every image has a label
])  # fmt: skip
def test_clips_are_the_denser_video_and_labels_stay_exact(layout, task, rate, every, step, tmp_path):
    site = load_site(site_of(tmp_path / "site", layout, task, clip=4, interval=0.2))
    spec = SampleSpec(TARGETS[task], frames=4, interval=0.2)
    dense, plain = scene_of(layout, frames=4 * every, rate=rate), scene_of(layout, rate=rate / every)

    listed = samples(site, "train", spec)

    assert check_site(site, spec) == []
    for i, (sample, frame) in enumerate(zip(listed, plain, strict=True)):
        shown = [max(i * every - back, 0) for back in (3, 2, 1, 0)]
        assert numbers(sample) == [step * index for index in shown]
        item = read_sample(sample)
        error = np.abs(item.images.astype(int) - [dense[index].image for index in shown])
        assert error.mean() < 2 if layout == "grasp" else not error.any()  # GraSP's are JPEG
        truth = frame.depth if task == "depth" else LAYOUTS[layout].ids(frame)
        np.testing.assert_allclose(item.targets[TARGETS[task][0]], truth, atol=1 / 256)


@pytest.mark.parametrize("layout", FILMS)
def test_without_labels_every_image_has_the_clip_that_it_is_a_sample_of(layout, tmp_path):
    path = site_of(tmp_path / "site", layout, "reconstruction", clip=3, interval=0.2)
    site, spec = load_site(path), SampleSpec((), frames=3, interval=0.2)
    assert check_site(site, spec) == []
    step = round(0.2 * site.rate)
    shown = [numbers(sample) for sample in samples(site, "train", spec)]
    first = shown[0][0]  # of AutoLaparo's clip 001 it is 1000
    assert shown == [[first + max(i - back, 0) * step for back in (2, 1, 0)] for i in range(4)]


@pytest.mark.parametrize("task", ["segmentation", "reconstruction"])
def test_clips_of_single_images_are_the_images_repeated(task, tmp_path):
    path = site_of(tmp_path / "site", "sisvse", task, clip=4, interval=0.2)
    site, spec = load_site(path), SampleSpec(TARGETS[task], frames=4, interval=0.2)
    assert check_site(site, spec) == []
    assert schedule("sisvse", clip=4, interval=0.2) == schedule("sisvse")
    assert schedule("endovis2017", clip=4, interval=0.5) == schedule("endovis2017")  # at its own rate
    listed = samples(site, "train", spec)
    assert [sample.images for sample in listed] == [(sample.images[-1],) * 4 for sample in listed]
    assert len(listed) == 4


def test_tasks_cycle_over_the_sites_and_take_their_layouts(tmp_path):
    plans = plan_sites(tmp_path, sites=4, tasks=("segmentation", "segmentation", "depth"))
    assert [plan.task for plan in plans] == ["segmentation", "segmentation", "depth", "segmentation"]
    assert [plan.layout for plan in plans] == ["endovis2017", "endovis2018", "scared", "endovis2017"]
    assert plan_sites(tmp_path, sites=3) == plan_sites(tmp_path, sites=3, tasks=("segmentation",))
    given = {plan.layout for plan in plan_sites(tmp_path, sites=12, tasks=("segmentation", "reconstruction"))}
    assert given == {"endovis2017", "endovis2018", "sar_rarp50", "scared"}  # the others only where asked for
    assert [plan.layout for plan in plan_sites(tmp_path, sites=2, layouts=["grasp"])] == ["grasp", "grasp"]


FIVE = ("endovis2017", "endovis2018_scene", "autolaparo", "scared", "stereomis")


def test_sites_of_named_layouts_have_the_layouts_tasks(tmp_path):
    plans = plan_sites(tmp_path, sites=6, layouts=FIVE)
    assert [plan.layout for plan in plans] == [*FIVE, FIVE[0]]
    assert [plan.task for plan in plans] == ["segmentation"] * 3 + ["depth"] * 2 + ["segmentation"]
    one, other = plan_sites(tmp_path, sites=2, layouts=["scared", "auto"])
    assert (one.task, other.task) == ("depth", "segmentation")
    with pytest.raises(ValueError, match="layout 'scared' has no labels for segmentation"):
        plan_sites(tmp_path, sites=2, layouts=FIVE[3:], tasks=("segmentation", "depth"))


def test_five_sites_of_five_kinds_are_rendered_with_labels_on_every_frame_of_a_clip(tmp_path, capsys):
    clips = ("--clip", "3", "--interval", "0.2")
    with pytest.raises(ValueError, match=r"five\.jpgg: is written as PNG; give a name that ends in \.png"):
        run("--out", tmp_path / "scenes", "--preview", tmp_path / "five.jpgg")
    sheet = ("--preview", tmp_path / "five.png", "--looks", "rose,amber,ivory")
    assert run("--out", tmp_path, "--sites", "5", "--layout", ",".join(FIVE), *clips, "--dense", *sheet) == 0
    assert run_command(check_data, tmp_path, "--frames", "3", "--interval", "0.2") == 0
    assert "5 of 5 sites ready" in capsys.readouterr().out
    sites = [load_site(tmp_path / f"site-{number}") for number in range(1, 6)]
    assert [len(site.classes) for site in sites] == [4, 12, 10, 0, 0]
    for site in sites:
        spec = SampleSpec(TARGETS[site.task or "segmentation"], frames=3, interval=0.2, targets_of="all")
        sample = samples(site, "train", spec)[1]
        (labels,) = read_sample(sample).targets.values()
        assert labels.shape == (3, 64, 96) and len(set(sample.images)) == 2
    assert pixels(tmp_path / "five.png").shape[1] == 4 * 96 + 3 * 6


def test_things_on_the_tissue_are_seen_and_move_no_label_of_instruments():
    for look in ("rose", "violet"):
        bare, laid = (scene_of(layout, look) for layout in ("endovis2018", "endovis2018_scene"))
        for before, after in zip(bare, laid, strict=True):
            assert np.array_equal(before.parts, after.parts) and np.array_equal(before.instances, after.instances)
            assert not before.things.any() and len(np.unique(after.things)) > 2
            assert not after.things[after.parts > 0].any()
            there = (after.things > 0) & (cv2.blur((after.parts > 0).astype(np.float32), (9, 9)) == 0)
            change = np.abs(before.image.astype(int) - after.image).mean(2)
            assert change[there].mean() > 20


def test_every_object_appears_in_some_video():
    frames = (next(render_video("simulated", seed, frames=1, things=THINGS, **SIZE)) for seed in range(6))
    assert set(np.unique([frame.things for frame in frames])) == set(range(len(THINGS) + 1))


@pytest.mark.parametrize(("changes", "message"), [
    ({"layout": "endovis17"}, "layout 'endovis17' is unknown; known layouts: endovis2017"),
    ({"videos": {"val": 1}}, "split 'val' is unknown; a site's splits are train, validation, test"),
    ({"videos": {"train": 0}}, "would be empty"), ({"videos": {"train": -1}}, "cannot have -1 videos"),
    ({"clip": 0}, "clips of 0 frames 0.0 s apart are impossible"),
    ({"clip": 4}, "clips of 4 frames 0.0 s apart are impossible"),
    ({"clip": 4, "interval": float("nan")}, "clips of 4 frames nan s apart are impossible"),
    ({"clip": 4, "interval": 0.17}, "0.17 s is not a whole number of sar_rarp50's frames"),
    ({"task": "depth"}, "layout 'sar_rarp50' has no labels for depth; layouts that have: scared"),
    ({"task": "dept"}, "task 'dept' is unknown; sites are rendered for segmentation, depth"),
])  # fmt: skip
def test_an_impossible_site_is_refused_before_rendering(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        site_of(tmp_path / "site", **({"layout": "sar_rarp50"} | changes))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("words", "message"), [
    (("--looks", "pink"), "look 'pink' is unknown"), (("--videos", "4"), "--videos '4' must be three numbers"),
    (("--sites", "0"), "0 sites must be at least 1"),
])  # fmt: skip
def test_the_command_explains_wrong_arguments(words, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run_command(render, "--out", tmp_path / "sites", *words)


def test_the_command_renders_a_set_of_sites(tmp_path, monkeypatch, capsys):
    write = Mock(return_value=tmp_path / "site.yaml")
    monkeypatch.setattr(render, "write_set_site", write)
    assert run_command(render, "--out", tmp_path, "--set", "fedsurg", "--frames", "2") == 0
    assert [call.args for call in write.call_args_list] == [(tmp_path, "fedsurg", place) for place in range(4)]
    assert "look violet, classification, 42 videos of 2 frames" in capsys.readouterr().out


def test_the_command_renders_a_site_per_task_that_check_data_finds_ready(tmp_path, capsys):
    out, sheet = tmp_path / "sites", tmp_path / "sheet.png"
    tasks = "segmentation,reconstruction,depth"
    assert run("--out", out, "--tasks", tasks, "--preview", sheet, "--looks", "rose") == 0

    sites = [yaml.safe_load((out / f"site-{i}/site.yaml").read_text()) for i in (1, 2, 3)]
    assert [site.get("task") for site in sites] == [None, "reconstruction", "depth"]
    assert "test" not in sites[0]["split"]
    recipes = [json.loads((out / f"site-{i}/render.json").read_text()) for i in (1, 2, 3)]
    assert [recipe["task"] for recipe in recipes] == tasks.split(",")
    assert run_command(check_data, out) == 0
    assert "3 of 3 sites ready" in capsys.readouterr().out
    picture = pixels(sheet)[..., ::-1]
    assert picture.shape == (3 * (26 + 64) + 26 + 44, 4 * 96 + 3 * 6, 3)  # captions; legend of parts; scale of depth
    assert (picture[2 * 26 + 64 : 2 * (26 + 64), 96 + 6 : 2 * 96 + 6] == 255).all()  # no labels, nothing beside


def test_a_site_is_rendered_again_a_foreign_folder_stays_and_an_interruption_leaves_nothing(tmp_path, monkeypatch):
    ours, foreign, empty = tmp_path / "ours", tmp_path / "foreign", tmp_path / "empty"
    for layout in ("endovis2018", "endovis2017"):
        site_of(ours, layout, frames_per_video=1)
    assert not (ours / "endovis2018").exists()
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"foreign exists and was not rendered by surgfl"):
        site_of(foreign, "endovis2017")
    assert [p.name for p in foreign.iterdir()] == ["thesis.txt"]
    monkeypatch.setattr("shared_components.scenes.site._write_site_file", Mock(side_effect=OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        site_of(empty / "site", "endovis2018", frames_per_video=1)
    assert list(empty.iterdir()) == []


def test_depth_beside_a_frame_is_brighter_the_nearer_and_hatched_grey_where_it_is_unknown():
    near, far = DEPTH_RANGE
    depth = np.array([[near, (near + far) / 2, far, 0.0]], np.float32)
    near, middle, far, unknown = tile(Mock(depth=depth), "depth")[0].astype(float)
    assert near.sum() > middle.sum() + 60 > far.sum() + 120
    assert np.ptp(unknown) == 0


def test_a_foreign_site_is_never_removed(tmp_path, capsys):
    out, ours = tmp_path / "sites", tmp_path / "elsewhere"
    run("--out", out, "--sites", "1")
    (out / "site-1").rename(ours)
    for name, file in (("site-4", "site.yaml"), ("hospital-a", "render.json")):  # a name that no command gives
        (out / name).mkdir()
        (out / name / file).write_text("{}")
    (out / "site-5").symlink_to(ours)
    capsys.readouterr()
    run("--out", out, "--sites", "1")
    assert (out / "site-4/site.yaml").read_text() == "{}" and (out / "hospital-a").is_dir()
    assert (out / "site-5").is_symlink() and (ours / "render.json").is_file()
    assert f"{out / 'site-4'}: left in place, it was not rendered by surgfl" in capsys.readouterr().out


def test_a_smaller_rendering_removes_each_site_of_a_larger_one_in_one_step(tmp_path, monkeypatch, capsys):
    assert run("--out", tmp_path, "--sites", "3") == 0
    capsys.readouterr()
    assert run("--out", tmp_path, "--sites", "2") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site-1", "site-2"]
    assert f"{tmp_path / 'site-3'}: removed, an earlier rendering's" in capsys.readouterr().out
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # killed before its files were removed
    removed, foreign = remove_sites(tmp_path, keep=["site-1"])
    assert (removed, foreign) == ([tmp_path / "site-2"], [])
    assert not (tmp_path / "site-2").exists()
