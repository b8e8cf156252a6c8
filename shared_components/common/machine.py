"""The one place that looks at the machine: processor, accelerator, memory, this process's age."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import torch


def device() -> torch.device:
    """Return the accelerator if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fast_bf16() -> bool:
    """Say whether this machine computes bfloat16 in hardware: its accelerator, or a processor without one."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    info = Path("/proc/cpuinfo")
    words = info.read_text().split() if info.exists() else []
    return "avx512_bf16" in words or "amx_bf16" in words


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hardware() -> str:
    """Return processor, cores usable by this process and accelerators in one line."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join([name, f"{cores()} cores", *cards])


def peak_memory_mb() -> float | None:
    """Return this process's peak resident memory in MB (VmHWM), where the system says it."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return None


def process_start() -> float:
    """Return when this process was created, on the clock of ``perf_counter``; now, where that is not known."""
    try:
        import psutil  # nvflare depends on it

        return time.perf_counter() - (time.time() - psutil.Process().create_time())
    except (ImportError, OSError):
        return time.perf_counter()
