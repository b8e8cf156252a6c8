"""Once round: a hospital's own folders become a site, train, are segmented, corrected in ITK, and train again."""

import cv2
import numpy as np
import pytest
import SimpleITK as sitk
from safetensors.torch import load_file

from shared_components.cli import main
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.scenes.site import write_site
from tests.federation.conftest import rewritten
from tests.flare.conftest import run_here
from tests.flare.simulator import tiny_job

pytestmark = pytest.mark.slow

VALUES = {1: 37, 2: 111, 3: 222}  # ids of the scene, and what this hospital's masks hold
NAMES = {37: "Schaft", 111: "Gelenk", 222: "Maulteil"}
OPERATIONS = ("OP Nord", "OP Süd")
SITES = ("haus-a", "haus-b")


def scene(folder):
    sizes = {"videos": {"train": 1, "validation": 1}, "frames_per_video": 4, "height": 64, "width": 96}
    return write_site(folder, look="rose", seed=5, **sizes)


@pytest.fixture
def folder(tmp_path):
    """Frames as JPEG and masks as PNG, in folders, values and names unlike any public dataset's."""
    site = load_site(scene(tmp_path / "scene"))
    values = np.array([0, *VALUES.values()], np.uint8)
    for operation, split in zip(OPERATIONS, ("train", "validation"), strict=True):
        for number, sample in enumerate(samples(site, split)):
            item = read_sample(sample)
            frame = cv2.cvtColor(item.images[-1], cv2.COLOR_RGB2BGR)
            for kind, ending, picture in (("Bilder", ".jpg", frame), ("Masken", ".png", values[item.targets["label"]])):
                path = tmp_path / "Aufnahmen" / kind / operation / f"{number:03d}"
                path.parent.mkdir(parents=True, exist_ok=True)
                assert cv2.imencode(ending, picture)[1].tofile(str(path) + ending) is None
    return tmp_path / "Aufnahmen"


def train(tmp_path, name, own):
    """Train the hospital's site beside a rendered one, whose classes have other names; return the run."""
    sites = tmp_path / f"{name}-sites"
    rewritten(own, sites / SITES[0])
    scene(sites / SITES[1])
    job = tiny_job(tmp_path / name, "mat_fl")
    assert run_here(job, tmp_path / f"{name}-ws", sites=SITES, SURGFL_SITE_CONFIG=str(sites)).panics == []
    return tmp_path / f"{name}-ws" / "models" / SITES[0] / "model.safetensors"


@pytest.mark.full_width
def test_own_frames_become_a_site_train_are_corrected_and_train_again(folder, tmp_path, capsys):
    given = [f"--id={value}={name}" for value, name in NAMES.items()]
    assert main(["site", "init", str(folder), "--yes", *given]) == 0, capsys.readouterr().out
    site = load_site(folder / "site.yaml")
    assert set(site.classes) == {"background", *NAMES.values()}
    model = train(tmp_path, "first", folder / "site.yaml")

    seen = tmp_path / "seen"
    words = ["segment", str(folder / "Bilder"), "--model", str(model), "--nifti", "--out", str(seen)]
    assert main(words) == 0, capsys.readouterr().out
    corrected = {}
    for operation in OPERATIONS:
        path = seen / "nifti" / "labels" / f"{operation}.nii.gz"
        volume = sitk.ReadImage(str(path))
        labels = sitk.GetArrayFromImage(volume)
        assert labels.shape == (4, 64, 96) and labels.max() < len(site.classes)
        labels[:, 20:40, 30:50] = site.classes.index("Gelenk")  # a clinician's brush
        labels[:, 41:60, 30:50] = site.classes.index("Schaft")
        labels[:, :9, :9] = site.classes.index("Maulteil")
        again = sitk.GetImageFromArray(labels.astype(np.int16))  # the type that editors save
        again.CopyInformation(volume)
        sitk.WriteImage(again, str(path))
        corrected[operation] = labels

    assert main(["site", "init", str(seen / "nifti"), "--yes", "--no-partly-labelled"]) == 0
    second = load_site(seen / "nifti" / "site.yaml")
    assert second.classes == site.classes
    for split, operation in zip(("train", "validation"), OPERATIONS, strict=True):
        listed = list(samples(second, split))
        assert len(listed) == 4
        for sample, mask in zip(listed, corrected[operation], strict=True):
            np.testing.assert_array_equal(read_sample(sample).targets["label"], mask)
    newer = train(tmp_path, "second", seen / "nifti" / "site.yaml")
    assert load_file(newer).keys() == load_file(model).keys()
    assert any(not (load_file(newer)[name] == value).all() for name, value in load_file(model).items())
