"""Properties of the machine: processor, accelerator, memory, this process's age."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

import psutil
import torch


def device() -> torch.device:
    """Return the accelerator if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fast_bf16() -> bool:
    """Return whether this machine computes bfloat16 in hardware: its accelerator, or without one its processor."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(_text_of("/proc/cpuinfo").split())


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
