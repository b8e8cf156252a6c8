"""A hostile server: each attempt is refused with one sentence, and its code never runs."""

import pickle
import struct
import zipfile

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.utils import fobs

from shared_components.core.trained_model import load_trained
from shared_components.federation.messages import Message
from shared_components.flare import wire
from shared_components.flare.executor import SiteExecutor
from shared_components.networks.checkpoints import CheckpointError, load_metadata, load_weights
from tests.federation.conftest import make_job, toy_bundle  # noqa: F401 (a fixture)
from tests.flare.conftest import ByHand, Place, copied


@pytest.fixture
def marker(tmp_path):
    """Return the path of a file that hostile code would create; it must not exist when the test ends."""
    path = tmp_path / "marker"
    yield path
    assert not path.exists()


class Runs:
    """Create the marker when unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


def message(*, run="20261122-120000", **changes):
    """Return an honest server's enrolment message, with changes of the job."""
    header = {"job": {**make_job("fedavg").to_json(), **changes}, "run": run, "round": 0, "send_initial": True}
    return wire.to_shareable(Message({**header, "index": 0, "number": 0, "numbers": 3, "sites": 3}))


def refused(workspace, data, *beside):
    """Return the sentence of a site's refusal; no files exist except `beside`, which existed before."""
    reply = copied(SiteExecutor().execute("enrol", copied(data), Place(workspace, "site-1"), Signal()))
    assert reply.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    reason = reply.get_header(wire.ERROR)
    assert "\n" not in reason and len(reason) < 1000
    own = ("enrolled.json", "process", "step.json")
    files = [path for path in workspace.parent.rglob("*") if path.is_file() and path.name not in own]
    assert sorted(files) == sorted(beside)
    return reason


def hostile(marker):
    return f"$open({str(marker)!r}, 'w')"


@pytest.mark.parametrize("section", ["arguments", "training", "tasks", "network", "synthetic"])
@pytest.mark.parametrize("form", ["text", "list", "key", "target", "requires", "logging"])
def test_no_section_of_a_job_carries_code(workspace, marker, section, form):
    code = hostile(marker)
    value = {
        "text": {"a": code}, "list": {"a": [1, [code]]}, "key": {code: 1}, "requires": {"a": {"_requires_": code}},
        "target": {"_target_": "os.system", "command": f"touch {marker}"}, "logging": {"logging_file": str(marker)},
    }[form]  # fmt: skip
    reason = refused(workspace, message(**{section: value}))
    assert "is the expression" in reason or "names code" in reason


@pytest.mark.parametrize(
    "name", ["../evil", "/evil", "evil", "pvt_fpn/../../evil", "$import os", "", 7, None, ["pvt_fpn"]]
)
@pytest.mark.parametrize("key", ["bundle", "method"])
def test_a_server_can_name_only_installed_bundles_and_methods(workspace, tmp_path, marker, key, name):
    """A hostile bundle exists where the path leads."""
    path = tmp_path / "evil" / "configs" / "train.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f'imports: ["{hostile(marker)}"]\nnetwork_def: "{hostile(marker)}"\n')
    reason = refused(workspace, message(**{key: str(tmp_path / "evil") if name == "/evil" else name}), path)
    assert "does not exist" in reason or "write a name" in reason


def test_an_installed_bundle_that_was_tampered_with_is_refused_and_not_run(workspace, toy_bundle, marker):  # noqa: F811
    train = toy_bundle / "toy" / "configs" / "train.yaml"
    start = train.read_text().partition("network_def:")[0]
    files = [path for path in workspace.parent.rglob("*") if path.is_file()]
    for line in (f"network_def: {{_target_: os.system, command: touch {marker}}}", f'network_def: "{hostile(marker)}"'):
        train.write_text(start + line + "\n" + "tasks: {segmentation: {}}\ntraining: {height: 32, width: 64}\n")
        reason = refused(workspace, message(bundle="toy"), *files)
        assert "use a network of shared_components.networks, MONAI's" in reason or "is the expression" in reason


def test_a_jobs_configs_give_the_executor_no_arguments_and_the_controller_no_code(workspace, marker, messages):
    with pytest.raises(TypeError):
        SiteExecutor(logging_file=str(marker))
    job = {**make_job("fedavg").to_json(), "arguments": {"mode": hostile(marker)}}
    controller = ByHand(workspace, **job).start()
    (panic,) = controller.panics
    assert "arguments.mode is the expression" in panic and "\n" not in panic and controller.sent == []


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/evil", "..", ".", ".hidden", "a/b", "a\0b", "x" * 200, "", 5, None, ["a"]]
)
@pytest.mark.parametrize("key", ["run", "name"])
def test_a_server_does_not_choose_where_a_site_writes(workspace, marker, key, name):
    before = set(workspace.parent.parent.iterdir())
    refused(workspace, message(**{key: name}))
    assert set(workspace.parent.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("header", "words"),
    [("[" * 1_000_000, "is nested too deeply"), ("x" * 9_000_000, "no text of at most"), ("[]", "no dictionary")],
)  # fmt: skip
def test_an_invalid_header_is_refused(workspace, marker, header, words):
    data = DXO(DataKind.COLLECTION, data={}, meta={wire.HEADER: header}).to_shareable()
    assert words in refused(workspace, data)


def test_flares_serialiser_builds_neither_pickles_nor_classes_by_name(marker):
    for stream in (pickle.dumps(Runs(marker)), b"", b"\xff" * 100):
        with pytest.raises(Exception):  # noqa: B017 (whatever a damaged stream raises)
            fobs.loads(stream)
    for value in (Runs(marker), {"a": Runs(marker)}, Shareable({"x": Runs(marker)})):
        with pytest.raises(Exception):  # noqa: B017
            fobs.loads(fobs.dumps(value))
            raise AssertionError("an object of a foreign class came back")


ONE = b'{"a":{"dtype":"F32","shape":[25000000000],"data_offsets":[0,100000000000]}}'  # a tensor of 100 GB


@pytest.mark.parametrize(
    ("size", "text"),
    [(10**11, b"{}"), (2**64 - 1, b"{}"), (10**8 + 1, b"{}"), (2, b"{}"), (len(ONE), ONE), (500_000, b"[" * 500_000)],
)
def test_a_payload_header_of_100_gb_is_refused_without_its_memory(tmp_path, marker, size, text):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", size) + text)
    with pytest.raises(CheckpointError):
        load_trained(path, bundle="pvt_fpn")
    if size != 2:  # an empty file
        with pytest.raises(CheckpointError):
            load_weights(path)


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "model.safetensors", "model.bin"])
@pytest.mark.parametrize("packed", ["pickle", "zip", "torch"])
def test_a_pickle_is_no_checkpoint(tmp_path, marker, name, packed):
    path = tmp_path / name
    if packed == "torch":
        torch.save({"state_dict": {"a": torch.zeros(1)}, "evil": Runs(marker)}, path)
    elif packed == "pickle":
        path.write_bytes(pickle.dumps(Runs(marker)))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(Runs(marker)))
            archive.writestr("archive/version", "3")
    marker.unlink(missing_ok=True)  # pickling itself makes nothing
    with pytest.raises(CheckpointError):
        load_weights(path)


def test_a_pt_file_with_a_name_that_leads_elsewhere_is_refused(tmp_path, marker):
    path = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(1)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../marker", "x")
    assert load_metadata(path) == {}
    with pytest.raises(CheckpointError):
        load_weights(path)
