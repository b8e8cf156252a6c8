"""Files of `torch.save` are read as torch reads them, and a small hostile file costs neither memory nor time."""

import argparse
import io
import json
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import Counter, OrderedDict

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from shared_components.networks import model_files, pickled_tensors
from shared_components.networks.checkpoints import CheckpointError, load_weights, stored_weights

TIED = torch.arange(12.0)
STATES = {
    "module": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).state_dict(),
    "parameters": dict(nn.Linear(3, 2).named_parameters()),
    "views": {"all": TIED, "rows": TIED.reshape(3, 4).t(), "part": TIED[4:6], "again": TIED},
    "none": {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "step": torch.tensor(7)},
    "types": {
        kind: torch.ones(3).to(getattr(torch, kind))
        for kind in "float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64".split()
    },
}
NEW = {str(kind): torch.ones(3).to(kind) for kind in (torch.float8_e4m3fn, torch.uint16)}  # torch's old files have none
IGNORED = {
    "epoch": 3, "lr": 0.1, "name": "a" * 300, "long": 2**70, "done": True, "nothing": None, "set": {1}, "bytes": b"a",
    "args": argparse.Namespace(lr=0.1), "counts": Counter("aab"), "size": torch.Size([1]),
    "device": torch.device("cpu"),
    "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}, (1, 2): None}, "param_groups": [{"betas": (0.9, 0.999)}]},
}  # fmt: skip


def same(state, expected):
    return list(state) == list(expected) and all(
        state[name].dtype == value.dtype and torch.equal(state[name].to(torch.complex128), value.to(torch.complex128))
        for name, value in expected.items()
    )


@pytest.mark.parametrize("new", [True, False], ids=["zip", "old"])
@pytest.mark.parametrize("wrapped", [None, "state_dict", "model", "network"])
@pytest.mark.parametrize("name", STATES)
def test_every_dense_state_is_read_as_torch_reads_it(name, wrapped, new, tmp_path):
    state, path = STATES[name], tmp_path / "model.pth"
    torch.save(state if wrapped is None else {wrapped: state, **IGNORED}, path, _use_new_zipfile_serialization=new)
    assert same(stored_weights(path), state)
    with torch.serialization.safe_globals([argparse.Namespace]):
        loaded = torch.load(path, weights_only=True)
    assert same(stored_weights(path), loaded if wrapped is None else loaded[wrapped])


def test_a_state_of_newer_types_is_read_as_torch_reads_it(tmp_path):
    torch.save(NEW, tmp_path / "a.pt")
    assert same(stored_weights(tmp_path / "a.pt"), torch.load(tmp_path / "a.pt", weights_only=True))


def test_weights_that_share_memory_share_it_when_they_are_read(tmp_path):
    torch.save({"a": TIED, "b": TIED[2:]}, tmp_path / "a.pt")
    state = stored_weights(tmp_path / "a.pt")
    state["a"][2] = -1
    assert state["b"][0] == -1


def zipped(path, program, records=(), *, packed=False):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, data in {"data.pkl": program, "version": b"3\n", **dict(records)}.items():
            archive.writestr(f"archive/{name}", data)


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


def program_of(value):
    """Return a pickle as torch writes it; a ``Call`` names any function and a ``Place`` a storage."""
    written = io.BytesIO()
    pickler = pickle._Pickler(written, 2)
    pickler.persistent_id = lambda value: value.identifier if isinstance(value, Place) else None
    pickler.dump(value)
    return written.getvalue()


class Place:
    def __init__(self, numel):
        self.identifier = ("storage", torch.FloatStorage, "0", "cpu", numel)


def dense(size, stride, *, numel=4, offset=0):
    return Call(torch._utils._rebuild_tensor_v2, Place(numel), offset, size, stride, False, OrderedDict())


FOUR = {"data/0": struct.pack("<4f", 1, 2, 3, 4)}
HUGE = 6_000_000_000


def doubled(depth):
    """Return steps that put the top of the stack into a tuple twice, and that tuple again, and so on."""
    return b"".join(b"q" + bytes([n]) + b"h" + bytes([n]) + b"\x86" for n in range(depth))


def write_hostile(folder):
    """Write files of a few kilobytes that ask torch for gigabytes, or for hours."""
    linear, weight = nn.Linear(1, 1).state_dict(), torch.ones(100_000, dtype=torch.bfloat16)
    torch.save({"a": torch.ones(1, dtype=torch.bfloat16).expand(24 * 10**9)}, folder / "expanded.pt")
    torch.save({f"{n}": weight for n in range(5000)}, folder / "shared.pt")
    torch.save({"model": linear, "x": Call(bytearray, HUGE)}, folder / "bytearray.pt")
    for name, content in {
        "expanded-old.pt": {"a": torch.ones(1)[[0]].expand(10**6, 10**6)},
        "bytearray-old.pt": {"model": linear, "x": Call(bytearray, HUGE)},
    }.items():
        torch.save(content, folder / name, _use_new_zipfile_serialization=False)
    zipped(folder / "opcode.pt", b"\x80\x05\x96" + struct.pack("<Q", HUGE) + b".")
    zipped(folder / "bytes.pt", b"\x80\x05\x8e" + struct.pack("<Q", HUGE) + b".")
    (folder / "text-old.pt").write_bytes(b"\x80\x02X" + struct.pack("<I", 2**32 - 1) + b".")
    zipped(folder / "packed.pt", program_of({"a": dense((2, 2), (2, 1))}) + b"\0" * 10**8, FOUR, packed=True)
    for name, tensor in {
        "resized": dense((10**10,), (1,)), "long": dense((10**10,), (1,), numel=10**10),
        "far": dense((2,), (10**10,)), "behind": dense((2,), (1,), offset=10**10),
        "before": dense((2,), (1,), offset=-1), "backwards": dense((2,), (-1,), offset=1),
        "hollow": dense((10**12, 0), (1, 1)), "deep": dense((1,) * 60, (1,) * 60),
    }.items():  # fmt: skip
        zipped(folder / f"{name}.pt", program_of({"a": tensor}), FOUR)
    # a mapping whose key is a tuple that has twice a tuple, and so on: 2^100 parts in a few bytes
    zipped(folder / "laughs.pt", b"\x80\x02})" + doubled(100) + b"K\x01s.", FOUR)
    old = (pickle.dumps(value, 2) for value in (model_files._MAGIC, 1001, {"little_endian": True}, {}))
    (folder / "laughs-old.pt").write_bytes(b"".join(old) + b"\x80\x02])" + doubled(100) + b"a.")
    zipped(folder / "steps.pt", b"\x80\x02" + b"]" * (pickled_tensors.MOST_OPCODES + 2) + b".", FOUR)
    zipped(folder / "machine.pt", program_of({"a": dense((4,), (1,))}), {**FOUR, "byteorder": b"big"})
    with zipfile.ZipFile(folder / "twice.pt", "w") as archive:
        for _ in range(2):
            archive.writestr("archive/data.pkl", program_of({"a": dense((4,), (1,))}))
    save_file({"a": torch.zeros(0)}, folder / "sides.safetensors")
    for name, header in {
        "sides": {"a": {"dtype": "F32", "shape": [10**12, 0], "data_offsets": [0, 0]}},
        "numbers": {"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}},
        "product": {"a": {"dtype": "F32", "shape": [2**33, 2**33], "data_offsets": [0, 4]}},
    }.items():
        text = json.dumps(header).encode()
        data = b"\0" * 4 * (name == "product")
        (folder / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    nest = b'{"a":' + b"[" * 10**6 + b"]" * 10**6 + b"}"
    (folder / "nested.safetensors").write_bytes(struct.pack("<Q", len(nest)) + nest)
    many = json.dumps({f"{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(100_001)}).encode()
    (folder / "many.safetensors").write_bytes(struct.pack("<Q", len(many)) + many)
    (folder / "header.safetensors").write_bytes(struct.pack("<Q", 99_000_000) + b" " * 99_000_000)


READ_ALL = """
import resource, sys, time
from pathlib import Path
from shared_components.networks.checkpoints import CheckpointError, load_weights

now = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize:")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (now + 900_000_000, now + 900_000_000))
for path in sorted(Path(sys.argv[1]).iterdir()):
    begun = time.process_time()
    try:
        load_weights(path)
        print(path.name, "READ")
    except CheckpointError as error:
        text = str(error)
        assert str(path) in text and "\\n" not in text and len(text) < 500, text
        print(path.name, "REFUSED", round(time.process_time() - begun, 1), text.removeprefix(f"checkpoint {path} "))
"""
WORDS = {
    "expanded.pt": "shape [24000000000], but only 1 of its elements",
    "expanded-old.pt": "shape [1000000, 1000000], but only 1", "shared.pt": "share their data more than 4 times",
    "bytearray.pt": "other objects than tensors ('__builtin__.bytearray')", "bytearray-old.pt": "bytearray",
    "opcode.pt": "damaged", "bytes.pt": "damaged", "text-old.pt": "damaged", "packed.pt": "damaged",
    "resized.pt": "but only 4 of its elements", "long.pt": "'a' of shape [10000000000], but only",
    "far.pt": "but only 4 of its elements", "behind.pt": "but only 4 of its elements", "before.pt": "damaged",
    "backwards.pt": "damaged", "hollow.pt": "'a' of shape [1000000000000, 0], but only", "deep.pt": "60 dimensions",
    "laughs.pt": "no state dict", "laughs-old.pt": "damaged", "steps.pt": "more than 2000000 opcodes",
    "machine.pt": "another byte order", "twice.pt": "damaged",
    "sides.safetensors": "'a' of shape [1000000000000, 0], but only", "numbers.safetensors": "damaged",
    "product.safetensors": "damaged", "nested.safetensors": "damaged",
    "many.safetensors": "100001 tensors, and the limit is",
    "header.safetensors": "a header of 99000000 bytes, and the limit is 10000000",
}  # fmt: skip


def test_a_small_hostile_file_is_refused_by_a_sentence_within_little_memory(tmp_path):
    write_hostile(tmp_path)
    read = subprocess.run([sys.executable, "-c", READ_ALL, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert read.returncode == 0, read.stdout + read.stderr
    lines = dict(line.split(" ", 1) for line in read.stdout.splitlines())
    assert lines.keys() == WORDS.keys() == {path.name for path in tmp_path.iterdir()}
    assert {name: line for name, line in lines.items() if WORDS[name] not in line} == {}
    assert all(float(line.split()[1]) < 30 for line in lines.values())


@pytest.mark.parametrize("name", "os.system builtins.eval torch.load numpy.zeros torch.zeros builtins.list".split())
def test_a_function_that_a_pickle_names_is_neither_called_nor_imported(name, tmp_path):
    module, _, function = name.rpartition(".")
    zipped(tmp_path / "a.pt", f"\x80\x02}}X\x01\x00\x00\x00ac{module}\n{function}\nK\x05\x85Rs.".encode("latin-1"))
    with pytest.raises(CheckpointError, match=f"contains other objects than tensors .'{name}'."):
        load_weights(tmp_path / "a.pt")


def test_nothing_else_reads_a_model_file():
    """Only one file of the library contains functions that open model files."""
    from pathlib import Path

    package = Path(model_files.__file__).parents[1]
    words = ("torch.load(", "load_file(", "safe_open(", "import pickle\n", "np.load(", "pickle.load")
    readers = {path for path in package.rglob("*.py") if any(word in path.read_text() for word in words)}
    own_state = "federation/runs/store.py"
    assert {str(path.relative_to(package)) for path in readers} == {"networks/model_files.py", own_state}
