"""Export a network to ONNX with free batch, height and width, and compare it with PyTorch."""

import gc
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shared_components.common.atomic import atomically

STRIDE = 32  # height and width are multiples of it
LARGEST = 256  # maximum height and width in strides
EXAMPLE = (8, 9)  # size of the traced image in strides; several temporal windows, since a count of 1 becomes constant
TOLERANCE = 1e-3  # maximum difference relative to the largest logit
INPUT, OUTPUT = "image", "pred"
PACKAGES = ("onnxscript", "onnxruntime")


class OnnxError(ValueError):
    """Error for a network that cannot be exported."""


def export_onnx(
    network: nn.Module,
    path: Path,
    *,
    sizes: Sequence[tuple[int, int]],
    frames: int = 1,
    facts: Mapping[str, str] | None = None,
    free: bool = True,
) -> list[float]:
    """Write a network as an ONNX file with input `image` and output `pred`, and compare their outputs.

    The comparison finds sizes that tracing made constant although the exporter declares them as dynamic.

    Args:
        network: Network, which is set to evaluation mode, float32 and the CPU.
        path: Output file, created after the comparison.
        sizes: (height, width) of random images for the comparison.
        frames: Frames of a clip: 1 takes (B, 3, H, W), more (B, frames, 3, H, W). H and W are multiples of 32.
        facts: Entries of the file's metadata.
        free: Make batch, height and width dynamic; otherwise the file takes one image of the first size, and the export
            takes a quarter of the time.

    Returns the maximum difference of `pred` for each size, relative to its largest value. Raises OnnxError if a package
    is missing, the file exists, or the network cannot be exported.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise OnnxError(f"the export needs {missing[0]}, which is not installed: pip install {' '.join(PACKAGES)}")
    if path.exists():
        raise OnnxError(f"{path} exists; remove it, or choose another file")
    if getattr(network, "takes_boxes", False):
        raise OnnxError(
            f"{type(network).__name__} needs boxes and a memory across frames, which an ONNX file cannot have; "
            "use `surgfl segment --box`"
        )
    network = network.cpu().float().eval()
    program = _traced(network, frames, None if free else sizes[0])
    program.model.metadata_props.update(facts or {})
    with atomically(path) as beside:
        program.save(str(beside), external_data=False)
        return _compared(network, beside, sizes, frames)


def _traced(network: nn.Module, frames: int, size: tuple[int, int] | None) -> torch.onnx.ONNXProgram:
    options: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT]}
    if size is None:
        image = torch.zeros(_shape(2, frames, *(STRIDE * count for count in EXAMPLE)))
        rows, columns = (torch.export.Dim(name, min=1, max=LARGEST) for name in ("rows", "columns"))
        free = {0: torch.export.Dim("batch"), image.dim() - 2: STRIDE * rows, image.dim() - 1: STRIDE * columns}
        options["dynamic_shapes"] = (free,)
    else:
        image = torch.zeros(_shape(1, frames, *size))
    with _undisturbed(free=size is None):
        try:
            program = torch.onnx.export(network, (image,), **options, dynamo=True, verbose=False)
        except torch.onnx.errors.OnnxExporterError as error:
            reason = str(error).splitlines()[0]
            raise OnnxError(f"{type(network).__name__} cannot be exported: {reason}") from error
    assert program is not None  # only the older exporter returns None
    return program


def _compared(network: nn.Module, path: Path, sizes: Sequence[tuple[int, int]], frames: int) -> list[float]:
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its errors are raised, too
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    differences = []
    for batch, (height, width) in enumerate(sizes, start=1):
        image = torch.rand(_shape(batch, frames, height, width), generator=generator)
        with torch.no_grad():
            expected = network(image)
        try:
            (pred,) = session.run([OUTPUT], {INPUT: image.numpy()})
        except (Fail, InvalidArgument, RuntimeException) as error:
            raise _size_error(network, image, str(error).splitlines()[0]) from error
        same = pred.shape == expected.shape
        worst = (torch.from_numpy(np.asarray(pred)) - expected).abs().max() / expected.abs().max() if same else math.inf
        if not worst <= TOLERANCE:
            raise _size_error(network, image, f"it differs by {worst:.1e} of the largest value")
        differences.append(float(worst))
    return differences


def _size_error(network: nn.Module, image: Tensor, reason: str) -> OnnxError:
    size = "x".join(str(side) for side in image.shape)
    return OnnxError(
        f"{type(network).__name__} cannot be exported: at {size} the file's output is not the network's ({reason})"
    )


def _shape(batch: int, frames: int, height: int, width: int) -> tuple[int, ...]:
    return (batch, 3, height, width) if frames == 1 else (batch, frames, 3, height, width)


@contextmanager
def _undisturbed(*, free: bool) -> Iterator[None]:
    """Silence the exporter's warnings about deprecations and torchvision, and speed up the export.

    Garbage collection is off, since it takes a tenth of the time for the exporter's million objects. With free sizes
    the cache of fake tensors is off as well: it has few hits, and its keys take a quarter of the time.
    """
    from torch._dynamo import config  # the import takes seconds

    logger = logging.getLogger("torch.onnx")
    level, collects = logger.level, gc.isenabled()
    logger.setLevel(logging.ERROR)
    gc.disable()
    try:
        with warnings.catch_warnings(), config.patch(fake_tensor_cache_enabled=not free):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        if collects:
            gc.enable()
