"""The library with networks a quarter as wide: the same parts and names, a fifteenth of the parameters.

What is written, sent, hashed and compared is what federations of small frames take their time for.
"""

import functools
import json
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch

from shared_components.core.bundle import load_bundle
from shared_components.core.calibration import FILE
from shared_components.core.shipped_weights import FACTS, MODEL, sha256_of
from shared_components.federation.setup import allowed_payload
from shared_components.networks import bundle_config, pvt_fpn, pvt_fpn_clips, pvt_v2
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import load_metadata, save_weights, stored_weights

ROOT = Path(__file__).resolve().parents[1]
SEED = 5  # of the random weights
WIDTHS: dict[ModuleType, dict[str, object]] = {
    pvt_v2: {"CHANNELS": (8, 16, 40, 64)}, pvt_fpn: {"PYRAMID": 64, "SEGMENTATION": 32},
}  # fmt: skip


def make_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow the networks of this process, into which no shipped weights go."""
    monkeypatch.setattr(allowed_payload, "_shapes", functools.lru_cache(allowed_payload._shapes.__wrapped__))
    for module, widths in WIDTHS.items():
        for name, width in widths.items():
            monkeypatch.setattr(module, name, width)
            for user in (pvt_fpn, pvt_fpn_clips):
                if hasattr(user, name):
                    monkeypatch.setattr(user, name, width)


def narrow_library(root: Path) -> None:
    """Narrow the networks of a copy of the library, into which no shipped weights go."""
    for module, widths in WIDTHS.items():
        with (root / Path(str(module.__file__)).relative_to(ROOT)).open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = {width!r}\n" for name, width in widths.items())


def narrow_weights(bundles: Path) -> None:
    """Put random weights in the place of the shipped ones that do not fit, in a copy of the folder of bundles.

    They are the same in each run: what a random network shows on a picture of one colour may be no instrument at all.
    """
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(devices=[]):
        make_narrow(patch)
        for path in bundles.glob(f"*/{MODEL}"):
            bundle = path.parents[1]
            definition = load_bundle(bundle.name).network
            if definition["_target_"].rpartition(".")[0] not in (pvt_fpn.__name__, pvt_fpn_clips.__name__):
                continue
            torch.manual_seed(SEED)
            shipped, notes, drawn = stored_weights(path), load_metadata(path), build_network(definition).state_dict()
            path.unlink()  # it may be a link to the shipped ones
            save_weights(path, {name: drawn[name].to(value.dtype) for name, value in shipped.items()}, notes)
            facts = json.loads((bundle / FACTS).read_text("utf-8"))
            (bundle / FACTS).write_text(json.dumps(facts | {"sha256": sha256_of(path)}), "utf-8")
            path.with_name(FILE).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def narrow_everywhere(tmp_path_factory):
    """Narrow the networks of this process, and of those that it starts; return the root of what they import."""
    root = narrow_copy(tmp_path_factory.mktemp("narrow"))
    with pytest.MonkeyPatch.context() as patch:
        make_narrow(patch)
        patch.setattr(bundle_config, "bundles_folder", lambda: root / "bundles")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")])))
        patch.chdir(root)
        yield root


def narrow_copy(folder: Path) -> Path:
    """Make a copy of the library and its bundles that is narrow, to be first in PYTHONPATH; return its root."""
    for name in ("shared_components", "bundles"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "LICENSE", folder)
    narrow_library(folder)
    narrow_weights(folder / "bundles")
    return folder
