"""Network classes that are built, and classes that a job may name."""

import sys

import pytest

from shared_components.federation.messages import Job
from shared_components.networks import network_class as classes
from shared_components.networks.tiny import Tiny

OURS = "shared_components.networks.tiny.Tiny"
UNET, SMALL = "monai.networks.nets.BasicUNet", "tests.networks.own.Small"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    monkeypatch.delenv(classes.VARIABLE, raising=False)


def test_monais_short_and_long_names_are_one_class_and_names_of_other_modules_stay():
    for name in ("BasicUNet", UNET, "monai.networks.nets.basic_unet.BasicUNet"):
        assert classes.class_path(name) == UNET
    for name in ("my.BasicUNet", "monai.networks.BasicUNet", "monai.networks.netsx.BasicUNet", OURS):
        assert classes.class_path(name) == name


@pytest.mark.parametrize("target", [
    "os.system", "torch.nn.Linear", SMALL, "monai.networks.nets.FlexibleUNet", "monai.bundle.run", "", None, 3,
    "shared_components.core.partition.Piece", "shared_components.networks_of_mine.X",
])  # fmt: skip
def test_other_classes_are_not_built_whoever_names_them(target):
    sentence = f"^network_def: class .* is not allowed.*set {classes.VARIABLE}=<module>.<class>"
    with pytest.raises(ValueError, match=sentence) as error:
        classes.network_class({"_target_": target})
    assert "\n" not in str(error.value)


def test_what_is_refused_is_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "tests.networks.own", raising=False)
    with pytest.raises(ValueError, match="is not allowed"):
        classes.network_class({"_target_": SMALL})
    with pytest.raises(ValueError, match="is not allowed in jobs"):
        classes.check_job_class({"class": SMALL})
    assert "tests.networks.own" not in sys.modules


@pytest.mark.parametrize("name", ["checkpoints.export_pt", "parts.freeze", "checkpoints.CheckpointError"])
def test_what_is_no_network_is_not_called_though_it_is_ours(name):
    with pytest.raises(ValueError, match="is not a subclass of torch"):
        classes.network_class({"_target_": f"shared_components.networks.{name}"})


def test_ours_and_what_the_machines_owner_names_are_built(monkeypatch):
    assert classes.network_class({"_target_": OURS}) is Tiny
    monkeypatch.setenv(classes.VARIABLE, f" {SMALL} ,")
    assert classes.network_class({"_target_": SMALL}).__name__ == "Small"
    assert classes.allowed_here() == {SMALL}


@pytest.mark.parametrize("named", ["", SMALL, "monai", f"monai,{OURS}"])
def test_a_job_names_what_the_machines_owner_allows_and_nothing_else(named, monkeypatch):
    """Without the variable a job may not even name our own classes."""
    monkeypatch.setenv(classes.VARIABLE, named)
    classes.check_job_class({"width": 4})
    for path in (OURS, SMALL, UNET, "os.system"):
        job = Job("a", "pvt_fpn", "fedavg", network={"class": path})
        if path in named or (path == UNET and "monai" in named):
            classes.check_job_class(job.network)
            continue
        with pytest.raises(
            ValueError, match=f"^network: class '{path}' is not allowed in jobs .* set {classes.VARIABLE}="
        ):
            job.open_bundle()


def test_the_refusal_of_a_monai_network_names_the_short_remedy():
    with pytest.raises(
        ValueError, match=f"{classes.VARIABLE}={UNET}, or {classes.VARIABLE}=monai for MONAI's networks"
    ):
        classes.check_job_class({"class": "BasicUNet"})
    assert "FlexibleUNet" not in classes.MONAI_NETWORKS, "it downloads weights"
