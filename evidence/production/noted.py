"""Modified programs of sites: some record values for a trial, others send forbidden messages."""

from pathlib import Path

from evidence.production import recorder

NOTES = '''

def _noting(write_what_leaves, round_of):
    """Write the LOCAL pieces of the first weights, and what each reply of a round carries, beside the states."""
    from shared_components.federation.runs.store import save_tensors
    from shared_components.core.partition import Role, cut

    def first(self, setup, request):
        write_what_leaves(self, setup, request)
        folder = self._files(request).folder
        folder.mkdir(parents=True, exist_ok=True)
        own = cut(setup.network.state_dict(), setup.partition, Role.LOCAL)
        save_tensors(folder / "noted-first.safetensors", own, {})

    def noted(self, request, site, upload):
        reply = round_of(self, request, site, upload)
        folder = self._files(request).folder
        save_tensors(folder / f"noted-{request.round:05d}.safetensors", reply.pieces, {})
        return reply

    return first, noted


SiteRunner._write_what_leaves, SiteRunner._round = _noting(SiteRunner._write_what_leaves, SiteRunner._round)
'''
LEAK = '''

def _leaking(round_of):
    """Send the LOCAL pieces of a round with the others."""
    from dataclasses import replace

    from shared_components.federation.site.state import OWN
    from shared_components.core.partition import below

    def leaking(self, request, site, upload):
        reply = round_of(self, request, site, upload)
        if self.name not in {names!r}:
            return reply
        _, kept, _ = self._files(request).load()
        return replace(reply, pieces=reply.pieces | below(OWN, kept))

    return leaking


SiteRunner._round = _leaking(SiteRunner._round)
'''
COMMANDS = '''

def _commanding(round_of):
    """Send FLARE's commands to other parties' processes after the first round, and note what comes back."""
    import time

    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FedEventHeader, ReservedKey
    from nvflare.apis.shareable import Shareable
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.cellnet.utils import new_cell_message

    from shared_components.common.atomic import write_json

    def commanding(self, request, site, upload):
        reply = round_of(self, request, site, upload)
        if self.name == {name!r} and request.round == 0:
            (cell,) = (cell for name, cell in CoreCell.ALL_CELLS.items() if name.startswith(self.name + "."))
            run = cell.get_fqcn().partition(".")[2]
            answers = []
            for channel, topic, to in {commands!r}:
                body = Shareable()
                body.set_header(FedEventHeader.EVENT_TYPE, EventType.FATAL_SYSTEM_ERROR)
                body.set_header(FedEventHeader.TIMESTAMP, time.time())
                body.set_peer_props({{ReservedKey.IDENTITY_NAME: self.name}})
                command = new_cell_message({{}}, body)
                answer = cell.send_request(channel, topic, to.replace("JOB", run), command, timeout=2)
                answers.append(answer.get_header(MessageHeaderKey.RETURN_CODE))
            write_json(self._files(request).folder / {answers!r}, answers)
        return reply

    return commanding


SiteRunner._round = _commanding(SiteRunner._round)
'''
STREAMS = '''

def _breaking():
    """Say of every stream that the server's process of the job sends to anybody that it has failed."""
    import threading
    import time

    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.message import Message
    from nvflare.fuel.f3.streaming.byte_receiver import RxTask
    from nvflare.fuel.f3.streaming.stream_const import STREAM_ACK_TOPIC, STREAM_CHANNEL, StreamHeaderKey

    newest, made = [0], RxTask.__init__

    def noting(task, sid, origin, *arguments, **options):
        if origin.startswith("server."):
            newest[0] = max(newest[0], sid)
        made(task, sid, origin, *arguments, **options)

    def breaking():
        while True:
            time.sleep(0.01)
            for name, cell in list(CoreCell.ALL_CELLS.items()):
                site, _, run = name.partition(".")
                if site != {name!r} or not run or not newest[0]:
                    continue
                for sid in range(newest[0], newest[0] + 8):
                    said = {{StreamHeaderKey.STREAM_ID: sid, StreamHeaderKey.ERROR_MSG: "it was never here"}}
                    cell.fire_and_forget(STREAM_CHANNEL, STREAM_ACK_TOPIC, "server." + run, Message(said, None))

    RxTask.__init__ = noting
    threading.Thread(target=breaking, daemon=True).start()


_breaking()
'''
CODE = '''

def _ending():
    """Answer rounds by a return code by which FLARE ends the job for all."""
    execute = SiteExecutor.execute

    def ending(self, task_name, shareable, fl_ctx, abort_signal):
        reply = execute(self, task_name, shareable, fl_ctx, abort_signal)
        if fl_ctx.get_identity_name() == {name!r} and task_name == "round":
            reply.set_return_code({code!r})
        return reply

    SiteExecutor.execute = ending


_ending()
'''
ANSWERS = "answers.json"


def record_frames(installed: Path) -> None:
    """Record everything that the processes of a deployment send to the network."""
    (installed / "sitecustomize.py").write_text(Path(recorder.__file__).read_text(encoding="utf-8"))


def note(installed: Path) -> None:
    """Record each site's initial state and its answers."""
    _append(installed, NOTES)


def leak(installed: Path, *names: str) -> None:
    """Make these sites send their LOCAL pieces."""
    _append(installed, LEAK.format(names=names))


def command(installed: Path, name: str, commands: list[tuple[str, str, str]]) -> None:
    """Make a site send FLARE commands: channel, topic and target, with ``JOB`` for the job's id.

    The return codes of the answers are in `ANSWERS` in the site's folder of the run.
    """
    _append(installed, COMMANDS.format(name=name, commands=commands, answers=ANSWERS))


def break_streams(installed: Path, name: str) -> None:
    """Make a site report, while its job runs, that all transfers of the server have failed."""
    _append(installed, STREAMS.format(name=name))


def end_by_code(installed: Path, name: str, code: str) -> None:
    """Make a site answer each round with this return code."""
    _append(installed, CODE.format(name=name, code=code), "flare/executor.py")


def _append(installed: Path, code: str, room: str = "federation/site/runner.py") -> None:
    path = installed / "shared_components" / room
    path.write_text(path.read_text("utf-8") + code)
