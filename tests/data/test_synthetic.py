"""The renderer: equal seeds give equal bits, labels are exact, looks differ, layouts read back."""

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from shared_components.commands import render
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.data.synthetic import carving
from shared_components.data.synthetic.instruments import KINDS
from shared_components.data.synthetic.layouts import LAYOUTS
from shared_components.data.synthetic.looks import BY_NAME, LOOKS, SITE_LOOKS
from shared_components.data.synthetic.motion import PHASES
from shared_components.data.synthetic.scene import SceneFrame, render_video
from shared_components.data.synthetic.site import video_seed, write_site
from shared_components.data.synthetic.toolbox import tool

ROOT = Path(render.__file__).parents[2]
SMALL = {"height": 64, "width": 96}
LABELLED = [name for name, layout in LAYOUTS.items() if layout.target == "label"]
FULL = [name for name in LOOKS if BY_NAME[name].aperture == "full"]


def clip(look: str, seed: int = 1, frames: int = 6, **size: int) -> list[SceneFrame]:
    return list(render_video(look, seed, frames=frames, **(size or SMALL)))


def digest(look: str, seed: int) -> str:
    sha = hashlib.sha256()
    for frame in clip(look, seed, 4):
        for array in (frame.image, frame.parts, frame.instances, frame.depth):
            sha.update(array.tobytes())
        sha.update(repr((frame.phase, frame.tools, frame.actions, frame.gesture)).encode())
    return sha.hexdigest()


def small_site(out: Path, layout: str, look: str = "rose", **changes: object) -> Path:
    videos = {"train": 1, "validation": 1, "test": 1}
    arguments = {"look": look, "seed": 5, "videos": videos, "frames_per_video": 5, "layout": layout, **SMALL}
    return write_site(out, **(arguments | changes))


def test_a_seed_gives_the_same_bits_in_another_process():
    code = "import runpy, sys; print(runpy.run_path(sys.argv[1])['digest']('crimson', 7))"
    other = subprocess.run([sys.executable, "-c", code, __file__], capture_output=True, text=True, check=True, cwd=ROOT)
    assert other.stdout.strip() == digest("crimson", 7)


def test_another_seed_gives_another_video():
    assert digest("rose", 1) != digest("rose", 2)


@pytest.mark.parametrize("look", LOOKS)
def test_frames_have_the_promised_shapes_types_and_ids(look):
    for frame in clip(look):
        assert (frame.image.shape, frame.image.dtype) == ((64, 96, 3), np.uint8)
        assert (frame.parts.shape, frame.parts.dtype) == ((64, 96), np.uint8)
        assert (frame.depth.shape, frame.depth.dtype) == ((64, 96), np.float32)
        assert set(np.unique(frame.parts)) <= {0, 1, 2, 3}
        assert 0 <= frame.phase < len(PHASES) and 0 <= frame.gesture <= 7


def test_all_parts_and_all_tools_appear():
    videos = [frame for seed in range(6) for frame in clip("simulated", seed, 12)]
    assert set(np.unique([frame.parts for frame in videos])) == {0, 1, 2, 3}
    assert {name.split("_", 1)[1] for frame in videos for name in frame.tools} == set(KINDS)
    assert {len(frame.tools) for frame in videos} >= {0, 1, 2}


def test_every_instance_has_a_tool_and_an_action_and_covers_the_parts():
    for frame in clip("amber", 3, 12):
        assert set(np.unique(frame.instances)) == set(range(len(frame.tools) + 1)) | {0}
        assert np.array_equal(frame.instances > 0, frame.parts > 0)
        assert tuple(action[0] for action in frame.actions) == frame.tools


def test_instruments_are_nearer_than_all_tissue():
    compared = 0
    for frame in clip("rose", 2, 10):
        metal = frame.depth[frame.parts > 0]
        if metal.size:
            assert metal.max() < frame.depth[frame.parts == 0].min()
            compared += 1
    assert compared > 0


def test_looks_share_labels_but_not_images():
    videos = [clip(look, 4) for look in FULL]
    for other in videos[1:]:
        for a, b in zip(videos[0], other, strict=True):
            assert np.array_equal(a.parts, b.parts) and np.array_equal(a.instances, b.instances)
            assert a.tools == b.tools and a.phase == b.phase and a.actions == b.actions
            assert np.abs(a.image.astype(int) - b.image).mean() > 10


def test_an_aperture_hides_image_parts_and_depth_and_nothing_else():
    for plain, round_ in zip(clip("rose", 4), clip("violet", 4), strict=True):
        seen = round_.depth > 0
        assert 0.5 < seen.mean() < 1.0
        assert np.array_equal(round_.parts, np.where(seen, plain.parts, 0))
        assert not round_.image[~seen].any()


@pytest.mark.parametrize(("height", "width"), [(67, 101), (64, 200), (150, 70)])
def test_any_size_of_at_least_64_renders(height, width):
    assert clip("violet", 2, 2, height=height, width=width)[1].image.shape == (height, width, 3)


def test_the_number_of_threads_does_not_change_a_bit():
    threads = cv2.getNumThreads()
    try:
        cv2.setNumThreads(1)
        alone = clip("amber", 3, 2, height=256, width=320)
        cv2.setNumThreads(2)
        for a, b in zip(alone, clip("amber", 3, 2, height=256, width=320), strict=True):
            assert np.array_equal(a.image, b.image) and np.array_equal(a.depth, b.depth)
    finally:
        cv2.setNumThreads(threads)


def test_looks_are_told_apart_by_their_mean_colour():
    def colours(look: str, seed: int) -> np.ndarray:
        seen = [frame.image[frame.depth > 0].mean(0) for frame in clip(look, seed, 2)]
        return np.mean(seen, 0)

    centres = {look: np.mean([colours(look, seed) for seed in range(4)], 0) for look in SITE_LOOKS}
    names = list(centres)
    gaps = [np.linalg.norm(centres[a] - centres[b]) for a in names for b in names if a < b]
    assert len(SITE_LOOKS) >= 4 and min(gaps) > 15


def test_no_saturation_threshold_finds_the_instruments_in_every_look():
    best = {}
    for look in SITE_LOOKS:
        videos = [frame for seed in range(3) for frame in clip(look, seed, 3)]
        image = np.stack([frame.image for frame in videos]).astype(int)
        metal = np.stack([frame.parts for frame in videos]) > 0
        grey = 255 - 255 * (image.max(-1) - image.min(-1)) // np.maximum(image.max(-1), 1)
        overlaps = [((grey > t) & metal).sum() / ((grey > t) | metal).sum() for t in range(0, 255, 8)]
        best[look] = max(overlaps)
    assert min(best.values()) < 0.5, best


def test_tissue_and_camera_move():
    first, *_, last = clip("rose", 2)
    assert np.abs(first.image.astype(int) - last.image).mean() > 3


@pytest.mark.parametrize("kind", KINDS)
def test_plates_hold_only_known_materials_and_mirror_exactly(kind):
    kit = tool(kind, 10.0)
    for plate in (kit.shaft, kit.wrist, *kit.jaws):
        assert set(np.unique(plate.cover)) <= {0, 1 + carving.DARK, 1 + carving.METAL, 1 + carving.ACCENT}
    upper, lower = kit.jaws
    assert np.array_equal(upper.cover, lower.cover[::-1])
    across = upper.surface[..., 1].astype(int) + lower.surface[::-1, :, 1]
    assert set(np.unique(across[upper.cover > 0])) <= {255, 256}


def test_stains_change_material_but_not_shape():
    plain = tool(KINDS[0], 10.0)
    stained = plain.stained(np.random.Generator(np.random.PCG64(0)), 0.5)
    assert np.array_equal(plain.wrist.cover > 0, stained.wrist.cover > 0)
    assert (stained.wrist.cover == 1 + carving.STAINED).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"look": "roze"}, "look 'roze' is unknown; known looks: rose"),
        ({"seed": -1}, "seed -1 must be >= 0"),
        ({"frames": 0}, "frames 0 >= 1"),
        ({"height": 32}, "frames of 32x320"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_frame(arguments, message):
    with pytest.raises(ValueError, match=message):
        render_video(**({"look": "rose", "seed": 0, "frames": 2} | arguments))


@pytest.mark.parametrize("layout", LABELLED)
def test_a_site_reads_back_exactly_through_the_shared_readers(tmp_path, layout):
    site = load_site(small_site(tmp_path / "site", layout, look="violet"))
    assert site.dataset == layout
    video = render_video("violet", video_seed(5, 1), frames=5, rate=LAYOUTS[layout].rate, **SMALL)
    for stored, rendered in zip(samples(site, "train"), video, strict=True):
        item = read_sample(stored)
        error = np.abs(item.images[0].astype(int) - rendered.image)
        assert error.mean() < 2 if stored.images[0].suffix == ".jpg" else not error.any()
        parts = np.minimum(rendered.parts, len(site.classes) - 1)  # GraSP knows instruments alone
        assert np.array_equal(item.targets["label"], parts)
    assert len(samples(site, "validation")) == len(samples(site, "test")) == 5


def test_endovis2017_masks_lie_per_instrument_and_add_up(tmp_path):
    small_site(tmp_path / "site", "endovis2017", frames_per_video=8)
    video = tmp_path / "site/endovis2017/instrument_dataset_1"
    scene = list(render_video("rose", video_seed(5, 1), frames=8, rate=2.0, **SMALL))
    folders = sorted((video / "ground_truth").iterdir())
    assert {folder.name for folder in folders} == {f"{t}_labels" for frame in scene for t in frame.tools}
    for index, frame in enumerate(scene):
        masks = [cv2.imread(str(folder / f"frame{index:03d}.png"), cv2.IMREAD_UNCHANGED) for folder in folders]
        assert np.array_equal(np.max(masks, 0), 10 * frame.parts)


def test_endovis2018_colours_are_those_of_labels_json(tmp_path):
    small_site(tmp_path / "site", "endovis2018")
    root = tmp_path / "site/endovis2018"
    classes = {tuple(c["color"]): c["classid"] for c in json.loads((root / "labels.json").read_text())}
    assert classes[(0, 255, 255)] == 2 and classes[(125, 255, 12)] == 3 and len(classes) == 12
    label = cv2.imread(str(root / "seq_1/labels/frame000.png"))[..., ::-1]
    assert {classes[tuple(map(int, colour))] for colour in np.unique(label.reshape(-1, 3), axis=0)} <= {0, 1, 2, 3}


def test_sar_rarp50_numbers_are_multiples_of_60_and_actions_are_at_10_hz(tmp_path):
    small_site(tmp_path / "site", "sar_rarp50")
    video = tmp_path / "site/sar_rarp50/video_1"
    names = [f"{60 * i:09d}.png" for i in range(5)]
    assert sorted(p.name for p in (video / "rgb").iterdir()) == names
    assert sorted(p.name for p in (video / "segmentation").iterdir()) == names
    rows = [tuple(map(int, row.split(","))) for row in (video / "action_discrete.txt").read_text().split()]
    assert [row[0] for row in rows] == list(range(0, 300, 6))
    assert {row[1] for row in rows} <= set(range(8))


def test_grasp_masks_tell_the_kinds_of_instruments_and_cover_their_parts(tmp_path):
    small_site(tmp_path / "site", "grasp", frames_per_video=8)
    folder = tmp_path / "site/grasp/annotations/segmentations/CASE101"
    scene = list(render_video("rose", video_seed(5, 1), frames=8, rate=1.0, **SMALL))
    kinds = {"Bipolar": 1, "Prograsp": 2, "Needle": 3, "Scissors": 4}
    seen = set()
    for second, frame in enumerate(scene):
        mask = cv2.imread(str(folder / f"{30 * second:09d}.png"), cv2.IMREAD_UNCHANGED)
        assert np.array_equal(mask > 0, frame.parts > 0)
        for instance, tool_name in enumerate(frame.tools, start=1):
            (expected,) = (number for kind, number in kinds.items() if kind in tool_name)
            assert set(mask[frame.instances == instance]) == {expected}
            seen.add(expected)
    assert len(seen) > 1


def test_sisvse_sets_hold_parts_as_heads_wrists_and_bodies_of_one_kind(tmp_path):
    path = small_site(tmp_path / "site", "sisvse", look="simulated")
    root = tmp_path / "site/sisvse"
    assert yaml.safe_load(path.read_text())["history"] is False
    frame = next(render_video("simulated", video_seed(5, 1), frames=5, rate=2.0, **SMALL))
    mask = cv2.imread(str(root / "semantic_masks/manual_syn_1/scene_000000.png"), cv2.IMREAD_UNCHANGED)
    for part, value in {0: 0, 1: 8, 2: 7, 3: 6}.items():
        assert np.array_equal(mask == value, frame.parts == part)


def test_side_files_hold_depth_in_256ths_of_a_millimetre_and_the_labels(tmp_path):
    small_site(tmp_path / "site", "endovis2018")
    side = tmp_path / "site/side/seq_1"
    frame = next(render_video("rose", video_seed(5, 1), frames=5, **SMALL))
    depth = cv2.imread(str(side / "depth/frame000.png"), cv2.IMREAD_UNCHANGED)
    assert depth.dtype == np.uint16
    np.testing.assert_allclose(depth / 256.0, frame.depth, atol=1 / 256)
    header, first, *_ = (side / "frames.csv").read_text().splitlines()
    assert header == "frame,phase,phase_name,tools,actions,gesture"
    assert first.startswith(f"frame000,{frame.phase},{PHASES[frame.phase]},{';'.join(frame.tools)},")


def test_a_site_is_rendered_again_but_a_foreign_folder_is_left_alone(tmp_path):
    ours, foreign = tmp_path / "ours", tmp_path / "foreign"
    small_site(ours, "endovis2018")
    small_site(ours, "endovis2017")
    assert not (ours / "endovis2018").exists()
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"foreign exists and was not rendered by surgfl"):
        small_site(foreign, "endovis2017")
    assert [p.name for p in foreign.iterdir()] == ["thesis.txt"]


def test_an_interrupted_rendering_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("shared_components.data.synthetic.site._describe", fail)
    with pytest.raises(OSError, match="disk full"):
        small_site(tmp_path / "site", "endovis2018")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": "endovis17"}, "layout 'endovis17' is unknown; known layouts: endovis2017"),
        ({"videos": {"val": 1}}, "split 'val' is unknown; a site's splits are train, validation, test"),
        ({"videos": {"train": 0}}, "would be empty"),
        ({"videos": {"train": -1}}, "cannot have -1 videos"),
    ],
)
def test_a_site_that_cannot_be_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        small_site(tmp_path / "site", **({"layout": "endovis2017"} | changes))
    assert list(tmp_path.iterdir()) == []


def run_command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    render.configure(parser)
    return render.run(parser.parse_args(words))


def test_the_command_cycles_through_looks_and_layouts_and_draws_a_sheet(tmp_path):
    size = ("--height", "64", "--width", "96", "--frames", "3", "--videos", "1,1,0")
    sheet = tmp_path / "sheet.png"
    assert run_command("--out", str(tmp_path / "sites"), "--sites", "3", "--preview", str(sheet), *size) == 0
    sites = [yaml.safe_load((tmp_path / f"sites/site-{i}/site.yaml").read_text()) for i in (1, 2, 3)]
    assert [site["dataset"] for site in sites] == ["endovis2017", "endovis2018", "sar_rarp50"]
    assert "test" not in sites[0]["split"]
    # a bar above each of three rows and a legend below, 26 pixels each; gaps of 6 between six pictures
    assert cv2.imread(str(sheet)).shape == (3 * (26 + 64) + 26, 6 * 96 + 5 * 6, 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--looks", "pink"), "look 'pink' is unknown"),
        (("--videos", "4"), "--videos '4' must be three numbers"),
        (("--sites", "0"), "0 sites must be at least 1"),
    ],
)
def test_the_command_explains_wrong_arguments(tmp_path, words, message):
    with pytest.raises(ValueError, match=message):
        run_command("--out", str(tmp_path / "sites"), *words)
