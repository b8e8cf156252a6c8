"""Programs in forks of one process that has imported torch, MONAI and FLARE, which takes seconds of each start.

`warm_programs` makes a folder of commands to be put first in PATH. Each of them asks the process for a fork, which has
its arguments, variables, parent, working directory and files, imports our own code as any program does, and ends with
it.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import psutil

PROGRAMS = ("python", "surgfl", "nvflare")
IMPORTED = (
    "torch.utils.tensorboard", "monai.bundle", "nvflare.cli", "nvflare.private.fed.app.simulator.simulator_worker",
    "nvflare.app_opt.pt", "nvflare.app_common.executors.client_api_executor", "nvflare.fuel.f3.drivers.aio_grpc_driver",
    "nvflare.fuel.f3.drivers.aio_http_driver", "nvflare.fuel.f3.drivers.file_driver",
    "nvflare.fuel.f3.drivers.tcp_driver", "cv2", "jinja2", "msgspec", "safetensors.torch", "scipy.ndimage", "yaml",
)  # fmt: skip
LENGTH = struct.Struct("!i")
CLIENT = """\
#!{python} -IS
import json, os, signal, socket, struct, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
words = json.dumps([sys.argv, os.getppid(), os.getcwd(), os.umask(0o77), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as door:
    door.connect({door!r})
    socket.send_fds(door, [struct.pack("!i", len(words))], [0, 1, 2])
    door.sendall(words)
    answer = door.recv(4)
code = struct.unpack("!i", answer)[0] if answer else 70
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextlib.contextmanager
def warm_programs() -> Iterator[Path]:
    """Yield a folder with the commands `python`, `surgfl` and `nvflare`, which work until the context ends."""
    with TemporaryDirectory() as folder:  # of a short path: that of a socket has at most 107 bytes
        yield from _serving(Path(folder))


def _serving(folder: Path) -> Iterator[Path]:
    door = folder / "door"
    for name in PROGRAMS:
        (folder / name).write_text(CLIENT.format(python=sys.executable, door=str(door)))
        (folder / name).chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, __file__, door]
    server = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, start_new_session=True)  # deaf to Ctrl-C
    try:
        while not door.exists():
            assert server.poll() is None, "the process that imports ahead has ended"
            time.sleep(0.02)
        yield folder
    finally:
        server.communicate()


def serve(path: str) -> list[str]:
    """Import ahead and answer requests; return, in each fork, a program's arguments, to be executed."""
    sys.path.pop(0)  # of this file
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch takes its libraries of operators apart
    os.fsync = lambda number: None  # type: ignore[assignment,misc]  # no test cuts the power
    door = socket.socket(socket.AF_UNIX)
    door.bind(f"{path}.new")
    door.listen(64)
    os.rename(f"{path}.new", path)
    while door in select.select([door, sys.stdin], [], [])[0]:  # what can be read of stdin is its end: the tests have
        asking, _ = door.accept()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            door.close()
            return _attend(asking)
        asking.close()
    os._exit(0)


def _attend(asking: socket.socket) -> list[str]:
    """Fork the program; stay its guard, who says its exit code and ends it and its children when who asked is gone."""
    length, files, *_ = socket.recv_fds(asking, LENGTH.size, 3)
    words = b""
    while len(words) < LENGTH.unpack(length)[0]:
        words += asking.recv(1 << 16)
    program = os.fork()
    if program == 0:
        asking.close()
        os.setsid()
        return _become(*json.loads(words), files)
    for file in files:
        os.close(file)
    watched = os.pidfd_open(program)
    if watched not in select.select([asking, watched], [], [])[0]:
        for process in [*psutil.Process(program).children(recursive=True), psutil.Process(program)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        asking.sendall(LENGTH.pack(code))
    os._exit(0)


def _become(
    arguments: list[str], parent: int, folder: str, mask: int, variables: dict[str, str], files: list[int]
) -> list[str]:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.umask(mask)
    os.environ.clear()
    os.environ.update(variables)
    os.getppid = lambda: parent  # FLARE's process of a job ends with the one that has started it
    # FLARE numbers its streams from the time of its import; of two programs with the same numbers, one waits for ever
    streams = sys.modules["nvflare.fuel.f3.streaming.stream_utils"]
    assert hasattr(streams, "sid_base"), "this FLARE numbers its streams otherwise"
    streams.sid_base = time.time_ns() // 1000
    sys.executable = str(Path(arguments[0]).with_name("python"))
    sys.orig_argv = [sys.executable, *arguments[1:]]
    sys.path[:0] = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    return arguments


def execute(program: str, *arguments: str) -> None:
    """Do what `python`, or a script of the environment, does with arguments."""
    if (name := Path(program).name) != "python":
        sys.argv = [program, *arguments]
        runpy.run_path(str(Path(sys.prefix, "bin", name)), run_name="__main__")
        return
    first, *rest = arguments[1:] if arguments[0] == "-u" else arguments
    if first in ("-m", "-c"):
        sys.path.insert(0, "")
        sys.argv = [first, *rest[1:]]
        if first == "-m":
            sys.modules.pop(rest[0], None)  # of what was imported ahead, runpy warns
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            exec(rest[0], {"__name__": "__main__"})
        return
    sys.argv = [first, *rest]
    sys.path.insert(0, str(Path(first).parent.resolve()))
    runpy.run_path(first, run_name="__main__")


def end(program: list[str]) -> NoReturn:
    """Execute a program and end as Python does, without taking apart what was imported ahead, which takes 0.6 s."""
    code: object = 0
    try:
        execute(*program)
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    end(serve(sys.argv[1]))
