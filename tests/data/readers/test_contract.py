"""Every reader reads its own layout, whole or damaged; test_layouts.py tests what differs."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from shared_components.data.check import check_site
from shared_components.data.files.classes import CLASS_MAPS
from shared_components.data.files.images import DataError
from shared_components.data.readers import find_reader
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from tests.data.conftest import WRITERS, H, W, assert_frame, canonical_mask, depth_map, own_spec, write
from tests.data.label_layouts import LABEL_WRITERS

STRAY = {"grasp": ("frames/CASE001.tar.gz", "frames/__MACOSX/a.jpg"), "sisvse": ("images/a.jpg",)}
IDS = [
    ("autolaparo", 180, 9, [10, 200], "AutoLaparo ids are 0, 20, 40"),
    ("cholecseg8k", 31, 5, [1, 254], "CholecSeg8k has thirteen classes, black and white"),
    ("endovis2015_rigid", 70, 2, [71], "EndoVis 2015 rigid classes are 0, 160 shaft, 70 manipulator"),
    ("endovis2017", 20, 2, [50], "EndoVis 2017 parts are 0, 10 shaft, 20 wrist, 30 clasper, 40 other"),
    ("grasp", 3, 1, [8, 255], "GraSP masks contain 0 and the instruments 1 to 7"),
    ("pfedsis_npy", 2, 2, [4], "0, 1 shaft, 2 wrist, 3 clasper"),
    ("sar_rarp50", 3, 1, [10], "SAR-RARP50 ids are 0 to 9"),
    ("sisvse", 4, 2, [32], "Sisvse classes are 0 to 31"),
]
"""Dataset, a mask value, its class, unknown values, and the error message for them."""

every_reader = pytest.mark.parametrize("dataset", WRITERS)  # of maps; test_labels.py tests the others


def expected_target(dataset: str, index: int) -> np.ndarray:
    """Return depth in mm, or the mask with merged parts if the dataset does not distinguish them."""
    if dataset in ("scared", "stereomis"):
        return depth_map(index) / np.float32(256)
    if dataset == "cholecseg8k":  # grasper, L-hook, liver ligament
        return np.array([0, 5, 9, 12])[canonical_mask(index)]
    if dataset == "autolaparo":  # a shaft and a manipulator of its first tool, and the uterus
        return np.array([0, 2, 1, 9])[canonical_mask(index)]
    return np.minimum(canonical_mask(index), {"endovis2015_rigid": 2, "grasp": 1}.get(dataset, 3))


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def shrink(path: Path) -> None:
    array = np.zeros((4, 4, 3) if "seq_" in str(path) else (4, 4), dtype=np.uint8)
    write(path, array.astype(np.uint16) if {"rectified", "depthmap_undistorted"} & set(path.parts) else array)


def mislabel(path: Path) -> None:
    write(path, np.full((H, W, 3) if "seq_" in str(path) else (H, W), 99, dtype=np.uint8))


@every_reader
def test_frames_are_read_in_time_order_and_without_targets_every_image_is_a_sample(dataset, make_site):
    site, spec, reader = load_site(make_site(dataset)), own_spec(dataset), find_reader(dataset)
    assert check_site(site, spec) == []
    for split in ("train", "validation", "test"):
        listed = samples(site, split, spec)
        assert len(listed) == 4
        assert [sample.index for sample in listed] == sorted({sample.index for sample in listed})
        for index, sample in enumerate(listed):
            item = read_sample(sample)
            (target,) = item.targets.values()
            resized = target[::2, ::2] if reader.native_targets(sample.video) else target
            np.testing.assert_array_equal(resized, expected_target(dataset, index))
            assert target.dtype == (np.uint8 if reader.CLASS_MAP else np.float32)
            assert site.classes == CLASS_MAPS.get(reader.USUAL or reader.CLASS_MAP, ())
            assert not reader.CLASS_MAP or np.unique(target)[-1] == len(site.classes) - 1
            assert_frame(item.images[0], index, sample.images[0])
            assert (sample.site, item.name) == ("hospital-a", f"{sample.video.replace('/', '_')}-{sample.index}")
    listed = samples(site, "train", spec)
    for file in {file for sample in listed for files in sample.targets.values() for file in files}:
        file.unlink()
    for folder in (*site.root.rglob("ground_truth"), *site.root.rglob("Masks*"), *site.root.rglob("mask")):
        shutil.rmtree(folder)

    unlabelled = samples(load_site(site.path), "train", SampleSpec(targets=()))

    per_label = 2 if dataset == "sar_rarp50" else 1  # its images are at 10 Hz
    assert [sample.images for sample in unlabelled][::per_label] == [sample.images for sample in listed]
    assert len(unlabelled) == 4 * per_label
    item = read_sample(unlabelled[0])
    assert_frame(item.images[0], 0, unlabelled[0].images[0])
    assert item.targets == {}


@every_reader
def test_a_missing_image_or_target_is_listed_under_the_name_it_should_have(dataset, tmp_path):
    reader = find_reader(dataset)
    video = WRITERS[dataset](tmp_path, 1, 4)[0]
    listing = reader.frames(tmp_path, video)
    next(iter(listing[1][2].values()))[0].unlink()
    listing[2][1].unlink()
    assert reader.frames(tmp_path, video) == listing


@pytest.mark.parametrize("dataset", [*WRITERS, *LABEL_WRITERS])
def test_videos_are_in_natural_order_and_stray_files_are_no_frames(dataset, tmp_path):
    reader = find_reader(dataset)
    names = (WRITERS | LABEL_WRITERS)[dataset](tmp_path, 11, 2)
    assert reader.videos(tmp_path) == names
    listed = reader.frames(tmp_path, names[0]), reader.images(tmp_path, names[0])
    for folder in [path for path in tmp_path.rglob("*") if path.is_dir()]:
        for stray in ("Thumbs.db", "notes.txt", *(f"._{file.name}" for file in folder.iterdir() if file.is_file())):
            (folder / stray).write_bytes(b"x")
    for file in STRAY.get(dataset, ()):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"x")
    assert reader.videos(tmp_path) == names
    assert (reader.frames(tmp_path, names[0]), reader.images(tmp_path, names[0])) == listed


@every_reader
@pytest.mark.parametrize(("spoil", "of_mask", "what"), [
    (Path.unlink, False, "file is missing"), (Path.unlink, True, "file is missing"),
    (damage, False, "cannot be read as .npy|is not a readable image"),
    (damage, True, "cannot be read as .npy|is not a readable image"),
    (shrink, True, "(mask|depth) is 4x4 but its image .* is 80x64"),
    (mislabel, True, r"unknown ids \[99\]|has the unknown colour \(99, 99, 99\)|contains uint8"),
])  # fmt: skip
def test_every_bad_file_is_reported_once_by_site_and_file(dataset, spoil, of_mask, what, make_site):
    site, spec = load_site(make_site(dataset)), own_spec(dataset)
    frame = samples(site, "train", spec)[1]
    file = next(iter(frame.targets.values()))[0] if of_mask else frame.images[-1]
    spoil(file)
    (problem,) = check_site(site, spec)
    assert (problem.file, problem.site, problem.split, problem.sample) == (file, "hospital-a", "train", frame)
    assert not problem.quarantined
    assert str(problem).startswith(f"site hospital-a: {file}: ")
    assert re.search(what, problem.what)
    with pytest.raises(SiteError) as error:
        read_sample(frame)
    assert str(error.value) == str(problem) or (dataset, spoil) == ("endovis2017", shrink)  # of two masks per frame


@pytest.mark.parametrize(("dataset", "classes"), [
    ("grasp", [0, 1, 1, 1, 1, 1, 1, 1]),  # all seven instruments are foreground
    ("sar_rarp50", [0, 3, 2, 1, 0, 0, 0, 0, 0, 0]),  # everything but the tool is background
    ("sisvse",  # heads are claspers, bodies are shafts
     [
         0, 3, 1,  # background, HarmonicAce
         3, 2, 1, 3, 2, 1,  # MarylandBipolarForceps, CadiereForceps
         3, 1, 3, 1,  # CurvedAtraumaticGrasper, Stapler
         3, 2, 1, 3, 2, 1,  # clip appliers
         0, 0, 0, 0, 0,  # suction, needle, endotip, bag, drain
         0, 0, 0, 0, 0,  # organs
         0, 0, 0,  # gauze, other instruments, other tissues
     ]),
])  # fmt: skip
def test_every_value_of_a_mask_has_its_class(dataset, classes, tmp_path):
    write(tmp_path / "000000000.png", np.arange(len(classes), dtype=np.uint8)[None])
    assert find_reader(dataset).read_target("label", (tmp_path / "000000000.png",)).tolist() == [classes]


@pytest.mark.parametrize(("dataset", "known", "class_id", "unknown", "allowed"), IDS)
def test_a_mask_holds_known_ids_in_one_channel_or_in_equal_ones(dataset, known, class_id, unknown, allowed, tmp_path):
    def read(mask: np.ndarray) -> np.ndarray:
        path = tmp_path / ("frame003.npy" if dataset == "pfedsis_npy" else "frame003.png")
        write(path, mask.astype(np.uint8))
        return find_reader(dataset).read_target("label", (path,))

    equal = np.full((2, 3, 4), known)
    equal[..., 3] = 255
    coloured = equal.copy()
    coloured[1, 1, 0] += 1
    assert (read(equal[..., 0]) == class_id).all()
    for value in unknown:
        with pytest.raises(DataError, match=rf"frame003\.\w+: mask has unknown ids \[{value}\].*; .*{allowed}"):
            read(np.array([[0, value]]))
    if dataset == "pfedsis_npy":
        with pytest.raises(DataError, match=r"has shape \(2, 3, 4\); write the mask as \(H, W\)"):
            read(equal)
        return
    assert (read(equal) == class_id).all() and (read(equal[..., :3]) == class_id).all()
    with pytest.raises(DataError, match="is a colour image, not a mask of ids"):
        read(coloured)
