"""Inference backends: PyTorch, OpenVINO and ONNX Runtime."""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from shared_components.inference import PACKAGES, InferenceError
from shared_components.inference.frames import FrameStream
from shared_components.inference.predict import Streaming
from shared_components.networks.onnx_file import INPUT, OUTPUT, OnnxError, export_onnx

logger = logging.getLogger(__name__)
WORTH = 100
"""Minimum number of frames for which `auto` uses OpenVINO: it needs some 3 s of processor time more than PyTorch to
start, and 30 ms less per frame at 192x256."""
Run = Callable[[Tensor], Tensor]


def on_backend(
    network: nn.Module, stream: FrameStream, *, backend: str, precision: str, where: torch.device
) -> tuple[nn.Module, str]:
    """Return the network compiled for a backend, and the backend's name.

    Args:
        network: Network returned by `shown_frames`, in evaluation mode, on the CPU.
        stream: Frames whose size is compiled.
        backend: One of `BACKENDS`. `auto` is OpenVINO if it is installed and there are at least `WORTH` frames, else
            PyTorch. ONNX Runtime is slower than OpenVINO and has a long export.
        precision: `float32`, or `bf16`, which OpenVINO uses on processors that support it.
        where: Device; only PyTorch uses accelerators.

    Raises InferenceError: the backend is not installed, or cannot run this network.
    """
    why_not = _why_torch(network, where)
    is_worth_it = find_spec("openvino") is not None and (stream.total is None or stream.total >= WORTH)
    if backend == "torch" or (backend == "auto" and (why_not or not is_worth_it)):
        return network.to(where), "torch"
    if why_not:
        raise InferenceError(f"backend {backend} {why_not}; use torch or auto")
    if missing := [name for name in PACKAGES[backend if backend != "auto" else "openvino"] if find_spec(name) is None]:
        raise InferenceError(f"backend {backend} needs {missing[0]}, which is not installed: pip install {missing[0]}")
    try:
        if backend == "onnx":
            return Compiled(_onnx(network, stream, precision)), backend
        return Compiled(_openvino(network, stream, precision)), "openvino"
    except (RuntimeError, OnnxError) as error:
        reason = f"cannot run {type(network).__name__} ({str(error).strip().splitlines()[0]})"
        if backend != "auto":
            raise InferenceError(f"backend {backend} {reason}; use torch") from error
        logger.warning("OpenVINO %s; PyTorch is used instead", reason)
        return network.to(where), "torch"


class Compiled(nn.Module):
    """A network that another library runs on float32 images (1, 3, H, W); it is thread-safe."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, image: Tensor) -> Tensor:
        return self.run(image)


def _why_torch(network: nn.Module, where: torch.device) -> str:
    if isinstance(network, Streaming):
        return f"runs single frames, but {type(network.network).__name__} needs a memory of earlier frames"
    return f"runs on the CPU, but the device is {where}" if where.type != "cpu" else ""


def _openvino(network: nn.Module, stream: FrameStream, precision: str) -> Run:
    sys.modules.setdefault("openvino_telemetry", cast(Any, None))  # the import sends telemetry otherwise
    import openvino
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    example = torch.zeros(1, 3, stream.height, stream.width)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # size checks become constants in a trace; tracing is deprecated
        traced = torch.jit.freeze(torch.jit.trace(network.eval(), example, check_trace=False))
    front_end = FrontEndManager().load_by_framework("pytorch")
    decoder = TorchScriptPythonDecoder(traced)  # must outlive `convert`
    model = front_end.convert(front_end.load(decoder))
    model.reshape(list(example.shape))
    threads = torch.get_num_threads()
    settings = {
        "NUM_STREAMS": threads, "INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
    }  # fmt: skip
    compiled = openvino.Core().compile_model(model, "CPU", settings)

    class Request(threading.local):
        """Inference request of one thread."""

        def __init__(self) -> None:
            self.infer = compiled.create_infer_request().infer

    request = Request()
    return lambda image: torch.from_numpy(request.infer([image.numpy()])[0])


def _onnx(network: nn.Module, stream: FrameStream, precision: str) -> Run:
    import onnxruntime

    if precision != "float32":
        raise InferenceError(f"backend onnx computes in float32, but precision is {precision}; use openvino or torch")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # several threads share the session
    with tempfile.TemporaryDirectory(prefix="surgfl-") as folder:
        file = Path(folder) / "network.onnx"
        export_onnx(network, file, sizes=[(stream.height, stream.width)], free=False)
        session = onnxruntime.InferenceSession(file.read_bytes(), options, providers=["CPUExecutionProvider"])
    return lambda image: torch.from_numpy(session.run([OUTPUT], {INPUT: image.numpy()})[0])
