"""Return properties of the machine and this process: CPU, GPU, memory, start time."""

import os
import platform
import re
import time
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

DEVICES = "auto, cpu, cuda, cuda:1, mps"
"""Examples of device names; `auto` is an NVIDIA GPU if there is one, else the CPU."""


def device(name: str = "auto") -> torch.device:
    """Return a device by its name, see `DEVICES`; raise ValueError if this machine or its PyTorch lacks it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = usable_device(name)
    if chosen is None or chosen.type == "meta":
        here = ["cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
        here += ["mps"] * torch.backends.mps.is_available()
        raise ValueError(f"device {name!r} is not available on this machine; use one of auto, {', '.join(here)}")
    return chosen


def usable_device(name: Any) -> torch.device | None:
    """Return the PyTorch device of a name, or None if tensors cannot be created on it."""
    try:
        chosen = torch.device(name)
        torch.empty(0, device=chosen)
    except (TypeError, RuntimeError, AssertionError):  # an unknown name, or a device that this machine lacks
        return None
    return chosen


def fast_bf16(where: torch.device | None = None) -> bool:
    """Return whether a device computes bfloat16 in hardware; the default device is `device()`."""
    if (where or device()).type != "cpu":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(_text_of("/proc/cpuinfo").split())


def fast_precision(where: torch.device | None = None) -> Literal["float32", "bf16"]:
    """Return the fastest precision for training on a device, see `fast_bf16`."""
    return "bf16" if fast_bf16(where) else "float32"


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def frame_workers() -> int:
    """Return the default number of threads that read frames: up to 4 beside a GPU, none where the CPU trains."""
    return min(4, max(1, cores() - 1)) if device().type != "cpu" else 0


def hardware() -> str:
    """Return the CPU model, the number of usable cores and the GPUs in one line."""
    models = re.findall(r"^model name\s*:\s*(.*\S)", _text_of("/proc/cpuinfo"), re.MULTILINE)
    name = models[0] if models else platform.processor() or platform.machine()
    cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join([name, f"{cores()} cores", *cards])


def peak_memory_mb() -> float | None:
    """Return this process's peak resident memory in MB (VmHWM), or None if the system does not record it."""
    match = re.search(r"^VmHWM:\s*(\d+)", _text_of("/proc/self/status"), re.MULTILINE)
    return int(match[1]) / 1024 if match else None


def process_start() -> float:
    """Return the start time of this process on the clock of ``perf_counter``."""
    return time.perf_counter() - (time.time() - psutil.Process().create_time())


def _text_of(path: str) -> str:
    return Path(path).read_text("utf-8") if Path(path).exists() else ""
