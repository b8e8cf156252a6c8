"""A site of a few tiny frames, and the bundles run in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import yaml
from monai.bundle import ConfigWorkflow, ckpt_export

from shared_components.core.bundle import load_bundle
from shared_components.core.evaluation import network_input
from shared_components.core.metrics import frame_scores, summarise
from shared_components.core.shipped_weights import EXPORTED, shipped_facts
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.networks import bundle_config
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import save_weights
from shared_components.tasks.segmentation import enlarge
from shared_components.weights.bundle_files.copies import write_zoo
from shared_components.weights.bundle_files.make import described_bundles, read_description
from tests.federation.conftest import narrow, narrow_module, toy_bundle  # noqa: F401 (shipped: `full_width`)

BUNDLES = Path(__file__).parents[2] / "bundles"
HEIGHT, WIDTH = 64, 96
SHIPPING = [name for name in bundle_config.bundle_names() if shipped_facts(name)]
"""The bundles that ship weights; one that does not begins at random."""
SEGMENTING = [name for name in SHIPPING if "segmentation" in load_bundle(name).tasks]
PROMPTED = {"surgfed": {"boxes": "10,10,40,30"}}
"""What inference is told beside the frame by bundles whose network needs it; they are not exported to TorchScript."""
UNPROMPTED = [name for name in SEGMENTING if name not in PROMPTED]
SPLIT = {"train": ["train/video1"], "validation": ["train/video2"], "test": ["test/video3"]}
SITE = {"name": "hospital-a", "dataset": "pfedsis_npy", "root": "data", "split": SPLIT}
SPLIT_2015 = {"train": [{"OP1": [0, 3]}], "validation": [{"OP1": [3, 5]}], "test": [{"OP1": [5, 6]}]}
SITE_2015 = {"name": "hospital-b", "dataset": "endovis2015_rigid", "root": "three", "split": SPLIT_2015}
IDS_2015 = np.array([0, 160, 70, 70], np.uint8)  # 1 shaft, 2 and 3 manipulator
SIZES = {"height": HEIGHT, "width": WIDTH, "batch_size": 2, "rounds": 2, "iterations": 2, "start": "random"}


@pytest.fixture(scope="session")
def bundles() -> Path:
    return BUNDLES


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of `surgfl bundles --zoo` under the bundles' own names."""
    folder = tmp_path_factory.mktemp("made") / "zoo"
    write_zoo(folder, BUNDLES)
    for name in described_bundles(BUNDLES):
        (folder / read_description(name, BUNDLES).zoo_name).rename(folder / name)
    return folder


@pytest.fixture
def site_config(tmp_path: Path) -> Path:
    """A site in PFedSIS's layout: 3 frames to train, 2 to validate, 2 of twice the size to test."""
    _write_frames(tmp_path / "data" / "train", "video1", 3, HEIGHT, WIDTH)
    _write_frames(tmp_path / "data" / "train", "video2", 2, HEIGHT, WIDTH)
    _write_frames(tmp_path / "data" / "test", "video3", 2, 2 * HEIGHT, 2 * WIDTH)
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump(SITE, sort_keys=False))
    return path


@pytest.fixture
def three_class_site(tmp_path: Path) -> Path:
    """A site in the layout of EndoVis 2015, whose class map has three classes."""
    folder = tmp_path / "three" / "OP1"
    for number in range(1, 7):
        image, mask = _draw(number, HEIGHT, WIDTH)
        for kind, array in (("Raw/img_{:02d}_raw", image), ("Masks/img_{:02d}_class", IDS_2015[mask])):
            path = folder / f"{kind.format(number)}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), array)
    path = tmp_path / "three.yaml"
    path.write_text(yaml.safe_dump(SITE_2015, sort_keys=False))
    return path


@pytest.fixture
def small() -> dict[str, Any]:
    """Overrides that make training a matter of seconds."""
    return {f"training#{name}": value for name, value in SIZES.items()}


@pytest.fixture
def prepare() -> Callable[..., ConfigWorkflow]:
    """Build a bundle's workflow from its configs and overrides, as the command line does."""

    def prepare(bundle: str, *configs: str, **overrides: Any) -> ConfigWorkflow:
        folder = bundle_config.bundles_folder() / bundle / "configs"
        files = [str(folder / f"{config}.yaml") for config in configs]
        kind = "infer" if configs == ("inference",) else "train"
        return ConfigWorkflow(config_file=files, workflow_type=kind, logging_file=False, **overrides)

    return prepare


@pytest.fixture
def run(prepare: Callable[..., ConfigWorkflow]) -> Callable[..., ConfigWorkflow]:
    """Run a bundle from initialize to finalize."""

    def run(*args: str, **overrides: Any) -> ConfigWorkflow:
        workflow = prepare(*args, **overrides)
        workflow.initialize()
        workflow.run()
        workflow.finalize()
        return workflow

    return run


@pytest.fixture
def evaluated(run: Callable[..., ConfigWorkflow]) -> Callable[..., dict[str, Any]]:
    """Evaluate a checkpoint with a bundle's configs and overrides; return its metrics.json."""

    def evaluated(bundle: str, site: Path, checkpoint: Path, out: Path, **overrides: Any) -> dict[str, Any]:
        options = {"site_config": str(site), "checkpoint": str(checkpoint), "output_dir": str(out), **overrides}
        run(bundle, "train", "evaluate", **options)
        return json.loads((out / "metrics.json").read_text())

    return evaluated


def masks(folder: Path) -> dict[str, bytes]:
    """Return the files of a prediction's masks by name."""
    return {path.name: path.read_bytes() for path in (folder / "masks").iterdir()}


@pytest.fixture
def refusal() -> Callable[..., str]:
    """Call a function that must fail; return the message of the error that MONAI has wrapped in its own."""

    def refusal(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
        with pytest.raises((ValueError, RuntimeError)) as caught:
            function(*args, **kwargs)
        error: BaseException = caught.value
        while error.__cause__ is not None:
            error = error.__cause__
        assert "\n" not in str(error)
        return str(error)

    return refusal


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Random weights of the bundle pfedsis, without notes."""
    torch.manual_seed(1)
    path = tmp_path / "model.safetensors"
    save_weights(path, build_network(load_bundle("pfedsis").network).state_dict())
    return path


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Five frames of an MPEG-4 video, of a size that is no multiple of 32."""
    path = tmp_path / "surgery.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (100, 70))
    for index in range(5):
        writer.write(np.full((70, 100, 3), 40 * index, np.uint8))
    writer.release()
    return path


def scored_by_hand(site_config: Path, classify: Callable[..., torch.Tensor], names: tuple[str, ...]) -> dict[str, Any]:
    """Score a site's test frames with the metrics; `classify` maps the network's input to class ids (H, W)."""
    scores = []
    for frame in samples(load_site(site_config), "test"):
        item = read_sample(frame)
        truth = item.targets["label"]
        with torch.no_grad():
            ids = classify(network_input(item.images, HEIGHT, WIDTH)).to(torch.uint8).numpy()
        scores.append(frame_scores(enlarge(ids, truth.shape), truth, classes=range(1, len(names) + 1)))
    return summarise(scores, names)


def export(root: Path, path: Path, **options: Any) -> None:
    """Export a bundle's network with its configs as a TorchScript, as the zoo does, of `model.pt` or by `options`."""
    configs = {"meta_file": root / "configs" / "metadata.json", "config_file": root / "configs" / "inference.yaml"}
    files = {"filepath": path, "ckpt_file": root / EXPORTED, **configs, **options}
    ckpt_export("network_def", **{key: str(file) if isinstance(file, Path) else file for key, file in files.items()})


def _draw(seed: int, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A frame (H, W, 3) of noise with one coloured bar per class, and its mask (H, W)."""
    generator = np.random.default_rng(seed)
    image = generator.integers(60, 120, (height, width, 3), dtype=np.uint8)
    mask = np.zeros((height, width), dtype=np.uint8)
    for class_id in (1, 2, 3):
        top = int(generator.integers(0, height // 2))
        mask[top : top + height // 2, width * class_id // 5 : width * (class_id + 1) // 5] = class_id
    image[..., 0] += mask * 40
    return image, mask


def _write_frames(folder: Path, video: str, count: int, height: int, width: int) -> None:
    for index in range(count):
        for kind, array in zip(("image", "mask"), _draw(index, height, width), strict=True):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            np.save(folder / kind / f"{video}frame{index:03d}.npy", array)
