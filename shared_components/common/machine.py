"""Properties of the machine: processor, accelerator, memory, this process's age."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

DEVICES = "auto, cpu, cuda, cuda:1, mps"
"""Examples of what `device` takes; `auto` is NVIDIA's accelerator if there is one, else the processor."""


def device(name: str = "auto") -> torch.device:
    """Return a device by its name, see `DEVICES`; ValueError where this machine, or its PyTorch, has none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = usable_device(name)
    if found is None or found.type == "meta":
        here = ["cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
        here += ["mps"] * torch.backends.mps.is_available()
        raise ValueError(f"device {name!r} is not here; give one of auto, {', '.join(here)}")
    return found


def usable_device(name: Any) -> torch.device | None:
    """Return the device that PyTorch knows by a name; None where tensors cannot be made there."""
    try:
        found = torch.device(name)
        torch.empty(0, device=found)
    except (TypeError, RuntimeError, AssertionError):  # no name of one, or none of this machine's
        return None
    return found


def fast_bf16(where: torch.device | None = None) -> bool:
    """Return whether a device, by default the one of `device`, computes bfloat16 in hardware."""
    if (where or device()).type != "cpu":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(_text_of("/proc/cpuinfo").split())


def fast_precision(where: torch.device | None = None) -> Literal["float32", "bf16"]:
    """Return what a device computes training steps in fastest, see `fast_bf16`."""
    return "bf16" if fast_bf16(where) else "float32"


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hardware() -> str:
    """Return processor, cores usable by this process and accelerators in one line."""
    models = re.findall(r"^model name\s*:\s*(.*\S)", _text_of("/proc/cpuinfo"), re.MULTILINE)
    name = models[0] if models else platform.processor() or platform.machine()
    cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join([name, f"{cores()} cores", *cards])


def peak_memory_mb() -> float | None:
    """Return this process's peak resident memory in MB (VmHWM); None where the system does not record it."""
    found = re.search(r"^VmHWM:\s*(\d+)", _text_of("/proc/self/status"), re.MULTILINE)
    return int(found[1]) / 1024 if found else None


def process_start() -> float:
    """Return when this process was created, on the clock of ``perf_counter``."""
    return time.perf_counter() - (time.time() - psutil.Process().create_time())


def _text_of(path: str) -> str:
    return Path(path).read_text("utf-8") if Path(path).exists() else ""
