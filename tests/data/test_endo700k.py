"""The nine parts of Endo700k are read by video, and become nine sites without the next task's test videos."""

from contextlib import suppress
from fractions import Fraction

import av
import numpy as np
import pytest
import yaml

from shared_components.commands import site as command
from shared_components.data.check import check_site
from shared_components.data.endo700k import BEFORE, PARTS, left_out_videos, site_config
from shared_components.data.files.images import DataError
from shared_components.data.readers import find_reader
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.scenes.site_sets import IMAGES
from tests.data.conftest import assert_frame, encode, frame_image, run_command, write

IMAGES_ONLY = SampleSpec(targets=())
LAYOUTS = {
    "cholec80_frames": ({"frames/video02/video02_000001.png": "video02", "frames/video10/7.jpg": "video10"}, [1]),
    "dsad": ({"colon/01/image00.png": "01", "stomach/01/image03.png": "01", "colon/10/image00.png": "10"}, [0, 1]),
    "esad": ({"train/set1/RARP1_frame_9.jpg": "RARP1", "val/obj/RARP1_frame_9.jpg": "RARP1",
              "test/RARP4_frame_1.jpg": "RARP4"}, [0, 1]),
    "glenda": ({"DS/no_pathology/frames/v_1_s_3-5/f_3.jpg": "v_1", "DS/pathology/frames/v_20_s_1-3/f_1.jpg": "v_20"},
               [0]),
    "hsdb_instrument": ({"gastric_real_train/0000000012.jpg": "gastric_real_train",
                         "gastric_real_val/0000000001.jpg": "gastric_real_val"}, [12]),
    "lapgyn4": ({"Actions_on_Anatomy/Ovary/c_1_v_1_f_3.jpg": "c_1", "Surgical_Actions/Cutting/c_1_v_2_f_3.jpg": "c_1",
                 "Anatomical_Structures/Colon/c_10_v_1_f_3.jpg": "c_10"}, [0, 1]),
    "psi_ava": ({"keyframes/CASE001/00012.jpg": "CASE001", "keyframes/CASE021/00001.jpg": "CASE021"}, [12]),
}  # fmt: skip
"""Files of each data set with their videos, and the frame numbers of the first video."""
VIDEOS = {
    "cholec80_frames": ("videos/video01.mp4", "video01"),
    "heico": ("Rectal Resection/1/RectalResection_1.avi", "RectalResection_1"),
    "surgical_actions160": ("01_abdominal_access/01_02.mp4", "01_02"),
}
STRAY = (
    "colon/01/mask00.png", "gastric_real_train/1.json", "DS/pathology/annotations/v_1/f_3/a.png", "info.txt",
    "multilabel/01/image09.png", "multilabel/30/image09.png", "Instrument_Count/0/12.jpg",
    "Instrument_Count/0/c_1_v_1_f_1.jpg", "cholec_real_train/0000000002.jpg", "cholec_real_val/0000000003.jpg",
    "DS/no_pathology/frames/v_1_s_3-5/f_4.jpg", "DS/pathology/frames/v_20_s_1-3/f_2.jpg",
    "DS/pathology/frames/v_9_s_7-7/f_7.jpg",
    "train/set1/RARP1_frame_8.jpg", "val/obj/RARP1_frame_10.jpg", "test/RARP4_frame_3.jpg",
)  # fmt: skip
"""Files that are no images of the data sets, or that a pre-training leaves out."""
BOXES = {
    "train/set1/RARP1_frame_8.txt": 0, "train/set1/RARP1_frame_9.txt": 1, "val/obj/RARP1_frame_9.txt": 1,
    "val/obj/RARP1_frame_10.txt": 0, "test_labels/RARP4_frame_1.txt": 1, "test_labels/RARP4_frame_2.txt": 1,
}  # fmt: skip
"""Number of boxes in ESAD's annotations."""


def write_boxes(root):
    for file, boxes in BOXES.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("3 0.5 0.5 0.1 0.1\n" * boxes)


def encode_numbers(path, frames):
    """Write a video whose frames are as bright as three times their numbers."""
    return encode(path, [np.full((64, 96, 3), 3 * number, np.uint8) for number in range(frames)])


@pytest.mark.parametrize("name", LAYOUTS)
def test_images_are_found_by_video_and_stray_files_are_none(name, tmp_path):
    files, numbers = LAYOUTS[name]
    for index, file in enumerate(files):
        write(tmp_path / file, frame_image(index))
    write_boxes(tmp_path)
    for file in STRAY:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"x")
    reader = find_reader(name)
    names = list(dict.fromkeys(files.values()))
    assert set(reader.videos(tmp_path)) == set(names) and not reader.TARGETS
    first = reader.images(tmp_path, names[0])
    assert list(first) == numbers
    assert_frame(reader.read_image(first[numbers[0]]), 0, first[numbers[0]])
    images = {path.relative_to(tmp_path).as_posix(): v for v in names for path in reader.images(tmp_path, v).values()}
    assert images == files


@pytest.mark.parametrize("name", VIDEOS)
def test_a_video_gives_a_frame_a_second_decoded_in_place(name, tmp_path):
    file, video = VIDEOS[name]
    encode_numbers(tmp_path / file, 60)
    (tmp_path / "site.yaml").write_text(f"dataset: {name}\nroot: .\nsplit: {{train: ['{video}']}}\n")
    listed = samples(site := load_site(tmp_path), "train", IMAGES_ONLY)
    numbers = [0, 25, 50] if name == "cholec80_frames" else [12, 37]  # FFmpeg's fps=1, see the next test
    assert [sample.index for sample in listed] == numbers and check_site(site, IMAGES_ONLY) == []
    seen = [read_sample(sample).images.mean() / 3 for sample in listed]
    np.testing.assert_allclose(seen, numbers, atol=0.7)


@pytest.mark.parametrize("frames", [12, 14, 24, 30, 37, 39, 60])
def test_frames_of_published_videos_are_those_that_ffmpegs_fps_filter_gives(frames, tmp_path):
    graph = av.filter.Graph()
    source = graph.add_buffer(width=96, height=64, format="gray", time_base=Fraction(1, 25))
    every, sink = graph.add("fps", "1"), graph.add("buffersink")
    source.link_to(every)
    every.link_to(sink)
    graph.configure()
    expected = []
    for number in [*range(frames), None]:
        if number is not None:
            image = av.VideoFrame.from_ndarray(np.full((64, 96), number, np.uint8), format="gray")
            image.pts, image.time_base = number, Fraction(1, 25)
        source.push(None if number is None else image)
        with suppress(av.error.BlockingIOError, av.error.EOFError):
            while True:
                expected.append(int(sink.pull().to_ndarray()[0, 0]))
    encode_numbers(tmp_path / VIDEOS["surgical_actions160"][0], frames)
    assert list(find_reader("surgical_actions160").images(tmp_path, "01_02")) == expected


@pytest.mark.parametrize(("frames", "expected"), [(1, []), (2, [7]), (26, [7]), (27, [7, 32]), (51, [7, 32])])
def test_glenda_gives_every_25th_frame_of_a_stretch_but_not_its_last(frames, expected, tmp_path):
    for number in range(7, 7 + frames):
        write(tmp_path / f"DS/pathology/frames/v_3_s_7-99/f_{number}.jpg", frame_image(0))
    write(tmp_path / "DS/no_pathology/frames/v_3_s_1-2/f_1.jpg", frame_image(0))
    write(tmp_path / "DS/no_pathology/frames/v_3_s_1-2/f_2.jpg", frame_image(0))
    images = find_reader("glenda").images(tmp_path, "v_3").values()
    assert [path.stem for path in images] == ["f_1", *(f"f_{number}" for number in expected)]


def test_esad_gives_frames_from_the_first_box_of_a_set_to_its_last_and_needs_annotations(tmp_path):
    reader = find_reader("esad")
    write(tmp_path / "test/RARP3_frame_1.jpg", frame_image(0))
    with pytest.raises(DataError, match=r"test_labels: contains no annotation with a box .*; unpack the annotations"):
        reader.videos(tmp_path)
    folders = {"train/set1": "train/set1", "train/set2": "train/set2", "val/obj": "val/obj", "test": "test_labels"}
    for place, (images, labels) in enumerate(folders.items()):
        (tmp_path / labels).mkdir(parents=True, exist_ok=True)
        for number in range(1, 13):
            write(tmp_path / f"{images}/RARP{place}_frame_{number}.jpg", frame_image(0))
            text = "1 0.5 0.5 0.1 0.1" if number in (3 + place, 10 + place % 2) else ""
            (tmp_path / f"{labels}/RARP{place}_frame_{number}.txt").write_text(text)
    (tmp_path / "val/obj/RARP2_frame_11.txt").unlink()  # some images and annotations of the set are missing
    counts = {video: len(reader.images(tmp_path, video)) for video in reader.videos(tmp_path)}
    assert counts == {"RARP0": 8, "RARP1": 8, "RARP2": 6, "RARP3": 6}
    assert [path.stem for path in reader.images(tmp_path, "RARP2").values()][::5] == ["RARP2_frame_5", "RARP2_frame_10"]


def test_a_video_that_ends_early_is_found_frame_by_frame_before_training(tmp_path):
    path = encode_numbers(tmp_path / VIDEOS["heico"][0], 80)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (tmp_path / "site.yaml").write_text("dataset: heico\nroot: .\nsplit: {train: [RectalResection_1]}\n")
    *_, last = check_site(load_site(tmp_path), IMAGES_ONLY)
    assert last.what.startswith("has no frame 62: it ends after ")
    assert last.what.endswith(" of the 80 frames that it announces")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with copies of the nine layouts, Cholec80 with eleven videos."""
    root = tmp_path_factory.mktemp("endo700k")
    for site, dataset in PARTS.items():
        for number, file in enumerate(LAYOUTS.get(dataset, ({},))[0]):
            write(root / site / file, frame_image(number))
            if dataset == "glenda":  # whose last frame of a stretch is not used
                write((root / site / file).with_stem("f_99"), frame_image(number))
        if dataset in VIDEOS and site != "cholec80":
            first = encode_numbers(root / site / VIDEOS[dataset][0], 30)
            first.with_stem(f"{first.stem}2").write_bytes(first.read_bytes())
    write_boxes(root / "esad")
    for number in (1, 12, 13, 40, 41, 80):
        write(root / "cholec80" / f"frames/video{number:02d}/video{number:02d}_000001.png", frame_image(1))
    return root


def written(folder, out, *options):
    assert run_command(command, "endo700k", folder, "--out", out, *options) == 0
    return {path.parent.name: load_site(path) for path in out.glob("*/site.yaml")}


def test_nine_sites_are_written_that_can_be_read_and_keep_their_names(folder, tmp_path, capsys):
    sites = written(folder, tmp_path / "sites", "--before", "segmentation")
    assert list(sites) and set(sites) == set(PARTS) == set(IMAGES) and list(PARTS) == list(IMAGES)
    assert all(check_site(site, IMAGES_ONLY) == [] for site in sites.values())
    counts = [len(samples(site, split, IMAGES_ONLY)) for site in sites.values() for split in ("train", "validation")]
    assert min(counts) >= 1  # a federation asks for both
    assert "video12, video17, video27, video52" in capsys.readouterr().out
    with pytest.raises(SiteError, match="is there already; give --out another folder"):
        written(folder, tmp_path / "sites", "--before", "all")


def test_videos_of_both_folders_and_of_every_task_are_left_out(tmp_path):
    for number in (1, 2, 12):
        write(tmp_path / f"frames/video{number}/video{number}_000001.png", frame_image(1))
    split = site_config("cholec80", tmp_path, before="triplets", validation=1)["split"]
    assert split == {"train": ["video2"], "validation": ["video12"]}
    encode_numbers(tmp_path / "videos/video09.mp4", 30)
    split = site_config("cholec80", tmp_path, before="phases", validation=1)["split"]
    assert split == {"train": ["video1", "video2", "video09"], "validation": ["video12"]}
    assert set(left_out_videos("all")) == set().union(*(left_out_videos(task) for task in BEFORE[:-1]))
    with pytest.raises(ValueError, match="and not 'depth'; choose one of them"):
        left_out_videos("depth")


def test_missing_folders_are_named(folder, tmp_path, capsys):
    only = tmp_path / "only"
    only.mkdir()
    with pytest.raises(SiteError, match="has none of the folders heico, cholec80"):
        written(only, tmp_path / "a", "--before", "all")
    (only / "glenda").mkdir()
    with pytest.raises(DataError, match="has 0 videos of glenda to train on"):
        written(only, tmp_path / "a", "--before", "all")
    (only / "glenda").rmdir()
    (only / "glenda").symlink_to(folder / "glenda")
    written(only, tmp_path / "a", "--before", "all")
    assert "missing: heico, cholec80" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "a" / "glenda" / "site.yaml").read_text())["root"] == str(folder / "glenda")
