"""Hold a job's process at a named function, record its memory after each round, and other changes for trials.

Installed as `sitecustomize`, which Python imports at its start. Environment variables:

``SURGFL_TEST_HOLD``: file, see `holds.held`. A process that reaches the function writes a file beside it, and stops by
SIGSTOP. ``SURGFL_TEST_HELD``: file to which a process appends its resident and its unshared memory after each round, in
bytes. ``SURGFL_TEST_GUARDED``: file to which every process appends its module and the replaced FLARE functions, before
it connects. ``SURGFL_TEST_FORGET``: seconds until FLARE forgets the route of an ended stream; default 300.
``SURGFL_TEST_REST``: seconds that a site waits before each training step. ``SURGFL_TEST_PYTHON``: program that a parent
process starts as Python for a job.
"""

import functools
import importlib.util
import itertools
import json
import os
import signal
import sys
import time

VARIABLE = "SURGFL_TEST_HOLD"
HELD = "SURGFL_TEST_HELD"
GUARDED = "SURGFL_TEST_GUARDED"
FORGET = "SURGFL_TEST_FORGET"
REST = "SURGFL_TEST_REST"
PYTHON = "SURGFL_TEST_PYTHON"
STREAMER = "nvflare.fuel.f3.streaming.byte_streamer"
STEP = "shared_components.core.training:train_step"
LET_GO = "shared_components.flare.memory:let_go"
JOBS = ("runner_process", "worker_process")  # FLARE modules that run a job
PARENTS = ("server_train", "client_train")


def place(words, call, *, after=False):
    """Call a function before (or after) each call of ``module:Class.function``."""
    module, _, path = words.partition(":")
    *owners, name = path.split(".")
    assert module not in sys.modules, f"{module} has been imported already, so that nothing would be placed there"

    def wrap(loaded):
        owner = functools.reduce(getattr, owners, loaded)
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def outer(*values, **named):
            if not after:
                call()
            result = inner(*values, **named)
            if after:
                call()
            return result

        setattr(owner, name, outer)

    sys.meta_path.insert(0, Finder(module, wrap))


class Finder:
    """Patch a module right after its import, before another module takes a name from it."""

    def __init__(self, module, wrap):
        self.module, self.wrap = module, wrap

    def find_spec(self, name, path, target=None):
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)  # by another finder, if two wait for one module
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            self.wrap(module)

        spec.loader.exec_module = exec_module
        return spec


def hold(file):
    """Apply the changes that the environment requests."""
    with open(file, encoding="utf-8") as text:
        said = json.load(text)
    before, calls = itertools.count(), itertools.count(1)
    passed = [0]

    def note():
        passed[0] = next(before) + 1

    def stop():
        if passed[0] >= said["times"] and next(calls) == said["count"]:
            with open(f"{file}.reached", "w", encoding="utf-8") as reached:
                reached.write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)

    if said["after"]:
        place(said["after"], note)
    place(said["where"], stop)


def note_held(file):
    """Append this process's memory to the file after each round."""

    def note():
        import psutil  # a dependency of nvflare; imported late, since every start of Python runs this file

        memory = psutil.Process().memory_full_info()
        with open(file, "a", encoding="utf-8") as text:
            text.write(f"{memory.rss} {memory.uss}\n")

    place(LET_GO, note, after=True)


def note_guarded(file):
    """Append the replaced functions to the file before this process connects."""

    def note():
        found = set()
        for module in [module for name, module in sys.modules.items() if name.startswith("nvflare.")]:
            for owner in (module, *(value for value in vars(module).values() if isinstance(value, type))):
                found |= {
                    f"{owner.__name__.rpartition('.')[2]}.{name}"
                    for name in vars(owner)
                    if hasattr(getattr(owner, name, None), "surgfl_replaces")
                }
        with open(file, "a", encoding="utf-8") as text:
            text.write(json.dumps([next(word for word in sys.orig_argv if "nvflare." in word), sorted(found)]) + "\n")

    place("nvflare.fuel.f3.cellnet.core_cell:CoreCell.start", note)


def forget(seconds):
    """Set the seconds for which FLARE remembers ended streams, instead of 300."""

    def shorten(loaded):
        assert loaded.STREAM_ERROR_CONTEXT_TTL == 300, "FLARE has changed it"
        loaded.STREAM_ERROR_CONTEXT_TTL = seconds

    sys.meta_path.insert(0, Finder(STREAMER, shorten))


if GUARDED in os.environ and any(word.startswith("nvflare.") for word in sys.orig_argv):
    note_guarded(os.environ[GUARDED])
if PYTHON in os.environ and any(word.endswith(PARENTS) for word in sys.orig_argv):
    sys.executable = os.environ[PYTHON]
if any(job in word for word in sys.orig_argv for job in JOBS):
    if os.path.exists(os.environ.get(VARIABLE, "")):
        hold(os.environ[VARIABLE])
    if HELD in os.environ:
        note_held(os.environ[HELD])
    if FORGET in os.environ:
        forget(float(os.environ[FORGET]))
    if REST in os.environ:
        place(STEP, functools.partial(time.sleep, float(os.environ[REST])))
