"""A network as an ONNX file: any batch, height and width, compared with PyTorch."""

from __future__ import annotations

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
LARGEST = 256  # strides, each way
EXAMPLE = (8, 9)  # strides of the traced picture: several windows of a temporal layer, as a count of 1 becomes constant
TOLERANCE = 1e-3  # of the largest logit
INPUT, OUTPUT = "image", "pred"
PACKAGES = ("onnxscript", "onnxruntime")


class OnnxError(ValueError):
    """A network that cannot be exported."""


def export_onnx(
    network: nn.Module,
    path: Path,
    *,
    sizes: Sequence[tuple[int, int]],
    frames: int = 1,
    facts: Mapping[str, str] | None = None,
    free: bool = True,
) -> list[float]:
    """Write a network as one ONNX file with input `image` and output `pred`, and compare both.

    The exporter declares dynamic sizes even where tracing has made them constant, which the comparison finds.

    Args:
        network: Set to evaluation, float32 and the CPU.
        path: The file; it appears after the comparison.
        sizes: (height, width) of pictures of noise to compare at.
        frames: Of a clip: 1 takes (B, 3, H, W), more (B, frames, 3, H, W). H and W are multiples of 32.
        facts: Written into the file's metadata.
        free: Whether batch, height and width are free; otherwise the file takes a picture of the first size alone, and
            is made in a quarter of the time.

    Returns:
        For each size the largest difference of `pred`, as a share of its largest value.

    Raises:
        OnnxError: A package is missing, the file exists already, or the network cannot be exported so.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise OnnxError(f"the export needs {missing[0]}, which is not installed: pip install {' '.join(PACKAGES)}")
    if path.exists():
        raise OnnxError(f"{path} exists already; remove it, or name another file")
    if getattr(network, "takes_boxes", False):
        raise OnnxError(
            f"{type(network).__name__} follows boxes and remembers from frame to frame, which an ONNX file of one "
            "picture cannot; use `surgfl segment --box`"
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
    found = []
    for batch, (height, width) in enumerate(sizes, start=1):
        image = torch.rand(_shape(batch, frames, height, width), generator=generator)
        with torch.no_grad():
            expected = network(image)
        try:
            (pred,) = session.run([OUTPUT], {INPUT: image.numpy()})
        except (Fail, InvalidArgument, RuntimeException) as error:
            raise _of_one_size(network, image, str(error).splitlines()[0]) from error
        found.append(_share(np.asarray(pred), expected))
        if not found[-1] <= TOLERANCE:
            raise _of_one_size(network, image, f"it differs by {found[-1]:.1e} of the largest value")
    return found


def _share(pred: np.ndarray, expected: Tensor) -> float:
    if pred.shape != expected.shape:
        return math.inf
    return float((torch.from_numpy(pred) - expected).abs().max() / expected.abs().max())


def _of_one_size(network: nn.Module, image: Tensor, reason: str) -> OnnxError:
    size = "x".join(str(side) for side in image.shape)
    return OnnxError(
        f"{type(network).__name__} cannot be exported: at {size} the file does not do what the network does ({reason})"
    )


def _shape(batch: int, frames: int, height: int, width: int) -> tuple[int, ...]:
    return (batch, 3, height, width) if frames == 1 else (batch, frames, 3, height, width)


@contextmanager
def _undisturbed(*, free: bool) -> Iterator[None]:
    """Silence the exporter's deprecations, and its complaint about torchvision, which nothing here needs.

    And collect no garbage meanwhile: to look for some among its million objects takes a tenth of the time. With
    free sizes cache no fake tensors either: hardly one is found again, and the cache's keys take a quarter.
    """
    from torch._dynamo import config  # with the exporter, whose import takes seconds

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
