"""The nine parts of Endo700k: which files are images of which video."""

from __future__ import annotations

import av
import numpy as np
import pytest

from shared_components.commands import check_data
from shared_components.data.check import check_site
from shared_components.data.readers import find_reader, reader_names
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site_file import load_site
from tests.data.conftest import assert_frame, frame_image, run_command, write

IMAGES = SampleSpec(targets=())
PARTS = {
    "cholec80_frames": ({"frames/video02/video02_000001.png": "video02", "frames/video10/7.jpg": "video10"}, [1]),
    "dsad": ({"colon/01/image00.png": "01", "multilabel/01/image03.png": "01", "colon/10/image00.png": "10"}, [0, 1]),
    "esad": (
        {
            "train/set1/RARP1_frame_9.jpg": "RARP1",
            "val/obj/RARP1_frame_9.jpg": "RARP1",
            "test/RARP4_frame_1.jpg": "RARP4",
        },
        [0, 1],
    ),
    "glenda": (
        {"DS/no_pathology/frames/v_1_s_2-9/f_3.jpg": "v_1", "DS/pathology/frames/v_20_s_1-2/f_1.jpg": "v_20"},
        [0],
    ),
    "hsdb_instrument": (
        {
            "gastric_real_train/0000000012.jpg": "gastric_real_train",
            "gastric_real_val/0000000001.jpg": "gastric_real_val",
        },
        [12],
    ),
    "lapgyn4": (
        {"Instrument_Count/0/12.jpg": "Instrument_Count", "Surgical_Actions/Cutting/c_1_v_2_f_3.jpg": "c_1"},
        [0],
    ),
    "psi_ava": ({"keyframes/CASE001/00012.jpg": "CASE001", "keyframes/CASE021/00001.jpg": "CASE021"}, [12]),
}
VIDEOS = {
    "cholec80_frames": ("videos/video01.mp4", "video01"),
    "heico": ("Rectal Resection/1/RectalResection_1.avi", "RectalResection_1"),
    "surgical_actions160": ("01_abdominal_access/01_02.mp4", "01_02"),
}
STRAY = ("colon/01/mask00.png", "gastric_real_train/1.json", "DS/pathology/annotations/v_1/f_3/a.png", "info.txt")


def encode(path, frames):
    """Write a video whose frames are as bright as four times their numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(np.full((64, 96, 3), 3 * number, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("name", PARTS)
def test_images_are_found_by_video_and_stray_files_are_none(name, tmp_path):
    files, numbers = PARTS[name]
    for index, file in enumerate(files):
        write(tmp_path / file, frame_image(index))
    for file in STRAY:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"x")
    reader = find_reader(name)
    names = list(dict.fromkeys(files.values()))
    assert set(reader.videos(tmp_path)) == set(names) and not reader.TARGETS
    first = reader.images(tmp_path, names[0])
    assert list(first) == numbers
    assert_frame(reader.read_image(first[numbers[0]]), 0, first[numbers[0]])
    found = {
        path.relative_to(tmp_path).as_posix(): video
        for video in names
        for path in reader.images(tmp_path, video).values()
    }
    assert found == files


@pytest.mark.parametrize("name", VIDEOS)
def test_a_video_gives_a_frame_a_second_decoded_in_place(name, tmp_path, capsys):
    file, video = VIDEOS[name]
    encode(tmp_path / file, 60)
    (tmp_path / "site.yaml").write_text(f"dataset: {name}\nroot: .\nsplit: {{train: ['{video}']}}\n")
    listed = samples(site := load_site(tmp_path), "train", IMAGES)
    assert [sample.index for sample in listed] == [0, 25, 50] and check_site(site, IMAGES) == []
    assert [round(read_sample(sample).images.mean() / 3) for sample in listed] == [0, 25, 50]
    assert run_command(check_data, tmp_path) == 0
    assert f"  3 images in use; published of {name}: {find_reader(name).PUBLISHED}\n" in capsys.readouterr().out


def test_a_video_that_ends_early_is_found_frame_by_frame_before_training(tmp_path):
    path = encode(tmp_path / VIDEOS["heico"][0], 80)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (tmp_path / "site.yaml").write_text("dataset: heico\nroot: .\nsplit: {train: [RectalResection_1]}\n")
    problems = check_site(load_site(tmp_path), IMAGES)
    assert problems
    assert problems[-1].what.startswith("has no frame 75: it ends after ")
    assert problems[-1].what.endswith(" of the 80 frames that it announces")


def test_the_nine_parts_have_the_images_of_the_paper():
    parts = [find_reader(name) for name in reader_names() if not find_reader(name).TARGETS]
    counts = [reader.PUBLISHED for reader in parts if reader.PUBLISHED]
    assert len(counts) == 9 and sum(counts) == 734_549  # Table 8
    assert round(max(counts) / min(counts)) == 461
