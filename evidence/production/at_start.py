"""Hold a process of a job at a named function, note how much it holds after each round or how it is guarded, and more.

Copied as `sitecustomize` into what a deployment has installed, which Python imports by itself as it begins.
``SURGFL_TEST_HOLD`` names a file, see `holds.held`; a process that reaches the place says so in a file beside it, and
stops by SIGSTOP until it is continued or killed.
``SURGFL_TEST_HELD`` names a file, to which a process adds a line each time that it has let go of a round: its resident
memory and what of it nobody shares, bytes.
``SURGFL_TEST_GUARDED`` names a file, to which every process adds a line as it is about to connect: its module, and
which functions of FLARE's have been replaced by then.
``SURGFL_TEST_FORGET`` says after how many seconds FLARE forgets where a stream went that has ended; 300 without.
``SURGFL_TEST_REST`` says for how many seconds a site rests before each training step.
``SURGFL_TEST_PYTHON`` names the program that a parent process takes for Python when it starts a job's.
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
JOBS = ("runner_process", "worker_process")  # of FLARE's modules that run a job
PARENTS = ("server_train", "client_train")


def place(words, call, *, after=False):
    """Call a function before (or after) a function of a module, ``module:Class.function``, each time that is called."""
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
    """Let a module be changed as soon as it has been imported, before anybody takes a name from it."""

    def __init__(self, module, wrap):
        self.module, self.wrap = module, wrap

    def find_spec(self, name, path, target=None):
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)  # by another finder of its own, where two wait for one module
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            self.wrap(module)

        spec.loader.exec_module = exec_module
        return spec


def hold(file):
    """Prepare this process for what the file says."""
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
    """Let this process add what it holds to the file, after each round."""

    def note():
        import psutil  # nvflare depends on it; late, for every start of Python comes by here

        memory = psutil.Process().memory_full_info()
        with open(file, "a", encoding="utf-8") as text:
            text.write(f"{memory.rss} {memory.uss}\n")

    place(LET_GO, note, after=True)


def note_guarded(file):
    """Let this process add what it has replaced to the file, before it connects to anybody."""

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
    """Let FLARE keep what a late word of an error would be compared with for these seconds, and not for 300."""

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
