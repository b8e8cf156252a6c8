"""Rendered sites for every task, with clips, and what an earlier rendering leaves behind."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import yaml

from shared_components.commands import check_data, render
from shared_components.data.check import check_site
from shared_components.data.samples import Sample, SampleSpec, read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.data.synthetic.frame_times import TARGETS, schedule
from shared_components.data.synthetic.layouts import LAYOUTS
from shared_components.data.synthetic.preview import DEPTH_RANGE, tile
from shared_components.data.synthetic.scene import render_video
from shared_components.data.synthetic.site import remove_sites, video_seed, write_site
from shared_components.data.synthetic.site_plan import plan_sites

SIZE = {"height": 64, "width": 96}
VIDEOS = {"train": 1, "validation": 1}
FILMS = [name for name, layout in LAYOUTS.items() if not layout.stills]


def site_of(out: Path, layout: str, task: str, **changes: object) -> Path:
    arguments = {"look": "violet", "seed": 5, "videos": VIDEOS, "frames_per_video": 4, **SIZE, **changes}
    return write_site(out, layout=layout, task=task, **arguments)


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    render.configure(parser)
    small = ("--height", "64", "--width", "96", "--frames", "2", "--videos", "1,1,0")
    return render.run(parser.parse_args([*words, *small]))


def numbers(sample: Sample) -> list[int]:
    return [int(path.stem.removeprefix("frame")) for path in sample.images]


def test_a_depth_site_reads_back_to_a_256th_of_a_millimetre(tmp_path):
    site = load_site(site_of(tmp_path / "site", "scared", "depth"))
    spec = SampleSpec(("depth",))

    assert (site.dataset, site.task, site.classes) == ("scared", "depth", ())
    assert check_site(site, spec) == []
    scene = render_video("violet", video_seed(5, 1), frames=4, rate=2.5, **SIZE)
    for stored, frame in zip(samples(site, "train", spec), scene, strict=True):
        item = read_sample(stored)
        np.testing.assert_array_equal(item.images, frame.image[None])
        np.testing.assert_allclose(item.targets["depth"], frame.depth, atol=1 / 256)
        assert np.array_equal(item.targets["depth"] == 0, frame.depth == 0)  # outside the aperture: unknown
        assert (frame.depth == 0).any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_reconstruction_site_has_no_label_files_in_any_layout(layout, tmp_path):
    site = load_site(site_of(tmp_path / "site", layout, "reconstruction"))

    files = {path for path in site.root.rglob("*") if path.is_file()}
    listed = samples(site, "train", SampleSpec(())) + samples(site, "validation", SampleSpec(()))

    assert files == {path for sample in listed for path in sample.images}
    assert len(listed) == 8
    assert check_site(site, SampleSpec(())) == []


def test_every_public_site_of_nobody_publishes_its_style_and_its_model(tmp_path):
    assert load_site(site_of(tmp_path / "site", "endovis2018", "segmentation")).publish == ("style", "model")


@pytest.mark.parametrize(
    ("layout", "task", "rate", "every", "step"),
    [("sar_rarp50", "segmentation", 5.0, 5, 12), ("grasp", "segmentation", 5.0, 5, 6), ("scared", "depth", 5.0, 2, 5)],
)
def test_clips_are_the_denser_video_and_labels_stay_exact(layout, task, rate, every, step, tmp_path):
    site = load_site(site_of(tmp_path / "site", layout, task, clip=4, interval=0.2))
    spec = SampleSpec(TARGETS[task], frames=4, interval=0.2)
    dense = list(render_video("violet", video_seed(5, 1), frames=4 * every, rate=rate, **SIZE))
    plain = render_video("violet", video_seed(5, 1), frames=4, rate=LAYOUTS[layout].rate, **SIZE)

    listed = samples(site, "train", spec)

    assert check_site(site, spec) == []
    for i, (sample, frame) in enumerate(zip(listed, plain, strict=True)):
        shown = [max(i * every - back, 0) for back in (3, 2, 1, 0)]
        assert numbers(sample) == [step * index for index in shown]
        item = read_sample(sample)
        error = np.abs(item.images.astype(int) - [dense[index].image for index in shown])
        assert error.mean() < 2 if layout == "grasp" else not error.any()  # GraSP's are JPEG
        truth = frame.depth if task == "depth" else np.minimum(frame.parts, len(site.classes) - 1)
        np.testing.assert_allclose(item.targets[TARGETS[task][0]], truth, atol=1 / 256)


def test_endovis_clips_are_a_denser_video_with_all_of_its_labels(tmp_path):
    site = load_site(site_of(tmp_path / "site", "endovis2018", "segmentation", clip=4, interval=0.2))

    listed = samples(site, "train", SampleSpec(frames=4, interval=0.2))

    assert site.rate == 5.0
    assert [numbers(sample) for sample in listed] == [[0] * 4, [0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 2, 3]]
    scene = list(render_video("violet", video_seed(5, 1), frames=4, rate=5.0, **SIZE))
    np.testing.assert_array_equal(read_sample(listed[3]).targets["label"], scene[3].parts)


@pytest.mark.parametrize("layout", FILMS)
def test_without_labels_every_image_has_the_clip_that_it_is_a_sample_of(layout, tmp_path):
    path = site_of(tmp_path / "site", layout, "reconstruction", clip=3, interval=0.2)
    site, spec = load_site(path), SampleSpec((), frames=3, interval=0.2)

    assert check_site(site, spec) == []
    step = round(0.2 * site.rate)
    shown = [numbers(sample) for sample in samples(site, "train", spec)]
    assert shown == [[max(i - back, 0) * step for back in (2, 1, 0)] for i in range(4)]


@pytest.mark.parametrize("task", ["segmentation", "reconstruction"])
def test_clips_of_single_images_are_the_images_repeated(task, tmp_path):
    path = site_of(tmp_path / "site", "sisvse", task, clip=4, interval=0.2)
    site, spec = load_site(path), SampleSpec(TARGETS[task], frames=4, interval=0.2)

    assert check_site(site, spec) == []
    assert schedule("sisvse", clip=4, interval=0.2) == schedule("sisvse")
    listed = samples(site, "train", spec)
    assert [sample.images for sample in listed] == [(sample.images[-1],) * 4 for sample in listed]
    assert len(listed) == 4


def test_layouts_that_do_not_fit_the_others_are_given_only_where_asked_for(tmp_path):
    given = {plan.layout for plan in plan_sites(tmp_path, sites=12, tasks=("segmentation", "reconstruction"))}

    assert given == {"endovis2017", "endovis2018", "sar_rarp50", "scared"}
    assert [plan.layout for plan in plan_sites(tmp_path, sites=2, layout="grasp")] == ["grasp", "grasp"]


@pytest.mark.parametrize("layout", ["sisvse", "grasp"])
def test_the_command_renders_a_layout_that_is_asked_for_and_check_data_finds_it_ready(layout, tmp_path, capsys):
    clips = ("--clip", "4", "--interval", "0.2")
    assert run("--out", str(tmp_path), "--sites", "1", "--layout", layout, "--looks", "simulated", *clips) == 0
    parser = argparse.ArgumentParser()
    check_data.configure(parser)

    assert check_data.run(parser.parse_args([str(tmp_path), "--frames", "4", "--interval", "0.2"])) == 0

    assert "1 of 1 sites are ready" in capsys.readouterr().out


def test_endovis_gives_clips_at_its_own_rate_without_any_change(tmp_path):
    assert schedule("endovis2017", clip=4, interval=0.5) == schedule("endovis2017")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip": 0}, "clips of 0 frames 0.0 s apart cannot be"),
        ({"clip": 4}, "clips of 4 frames 0.0 s apart cannot be"),
        ({"clip": 4, "interval": float("nan")}, "clips of 4 frames nan s apart cannot be"),
        ({"clip": 4, "interval": 0.17}, "0.17 s apart are no whole number of sar_rarp50's frames"),
        ({"task": "depth"}, "layout 'sar_rarp50' cannot hold depth; layouts for it: scared"),
        ({"task": "dept"}, "task 'dept' is unknown; sites are rendered for segmentation, depth"),
    ],
)
def test_what_a_layout_cannot_give_is_refused_before_rendering(changes, message, tmp_path):
    arguments = {"layout": "sar_rarp50", "task": "segmentation", **changes}
    with pytest.raises(ValueError, match=message):
        site_of(tmp_path / "site", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_tasks_cycle_over_the_sites_and_take_their_layouts(tmp_path):
    plans = plan_sites(tmp_path, sites=4, tasks=("segmentation", "segmentation", "depth"))

    assert [plan.task for plan in plans] == ["segmentation", "segmentation", "depth", "segmentation"]
    assert [plan.layout for plan in plans] == ["endovis2017", "endovis2018", "scared", "endovis2017"]


def test_without_tasks_the_plan_is_that_of_segmentation(tmp_path):
    assert plan_sites(tmp_path, sites=3) == plan_sites(tmp_path, sites=3, tasks=("segmentation",))


def test_the_command_renders_a_site_per_task_that_check_data_finds_ready(tmp_path, capsys):
    out, sheet = tmp_path / "sites", tmp_path / "sheet.png"

    tasks = "segmentation,reconstruction,depth"
    assert run("--out", str(out), "--tasks", tasks, "--preview", str(sheet), "--looks", "rose") == 0

    described = [yaml.safe_load((out / f"site-{i}/site.yaml").read_text()) for i in (1, 2, 3)]
    assert [site.get("task") for site in described] == [None, "reconstruction", "depth"]
    made = [json.loads((out / f"site-{i}/render.json").read_text())["task"] for i in (1, 2, 3)]
    assert made == tasks.split(",")
    parser = argparse.ArgumentParser()
    check_data.configure(parser)
    assert check_data.run(parser.parse_args([str(out)])) == 0
    assert "3 of 3 sites are ready" in capsys.readouterr().out
    picture = cv2.imread(str(sheet))[..., ::-1]
    assert picture.shape == (3 * (26 + 64) + 26 + 44, 4 * 96 + 3 * 6, 3)  # captions; legend of parts; scale of depth
    assert (picture[2 * 26 + 64 : 2 * (26 + 64), 96 + 6 : 2 * 96 + 6] == 255).all()  # no labels, nothing beside


def test_depth_beside_a_frame_is_brighter_the_nearer_and_hatched_grey_where_it_is_unknown():
    near, far = DEPTH_RANGE
    depth = np.array([[near, (near + far) / 2, far, 0.0]], np.float32)

    near, middle, far, unknown = tile(Mock(depth=depth), "depth")[0].astype(float)

    assert near.sum() > middle.sum() + 60 > far.sum() + 120
    assert np.ptp(unknown) == 0


def test_a_smaller_rendering_leaves_no_site_of_a_larger_one(tmp_path, capsys):
    assert run("--out", str(tmp_path), "--sites", "3") == 0
    capsys.readouterr()

    assert run("--out", str(tmp_path), "--sites", "2") == 0

    assert sorted(path.name for path in tmp_path.iterdir()) == ["site-1", "site-2"]
    assert f"{tmp_path / 'site-3'}: removed, an earlier rendering's" in capsys.readouterr().out


def test_a_strangers_site_is_never_removed(tmp_path, capsys):
    run("--out", str(tmp_path / "sites"), "--sites", "1")
    ours = tmp_path / "elsewhere"
    (tmp_path / "sites/site-1").rename(ours)
    stranger, link = tmp_path / "sites/site-4", tmp_path / "sites/site-5"
    stranger.mkdir()
    (stranger / "site.yaml").write_text("mine")
    link.symlink_to(ours)
    (tmp_path / "sites/hospital-a").mkdir()
    (tmp_path / "sites/hospital-a/render.json").write_text("{}")  # not a name that this command gives
    capsys.readouterr()

    run("--out", str(tmp_path / "sites"), "--sites", "1")

    assert (stranger / "site.yaml").read_text() == "mine"
    assert link.is_symlink() and (ours / "render.json").is_file()
    assert (tmp_path / "sites/hospital-a").is_dir()
    assert f"{stranger}: left in place, it was not rendered by surgfl" in capsys.readouterr().out


def test_a_site_that_is_not_wanted_any_more_vanishes_whole(tmp_path, monkeypatch):
    run("--out", str(tmp_path), "--sites", "2")
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # killed before its files were removed

    removed, foreign = remove_sites(tmp_path, keep=["site-1"])

    assert (removed, foreign) == ([tmp_path / "site-2"], [])
    assert not (tmp_path / "site-2").exists()
