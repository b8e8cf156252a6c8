"""A site's program that notes what a trial compares with, or that sends what it must not: a changed installation."""

from __future__ import annotations

from pathlib import Path

from . import recorder

NOTES = '''

def _noting(say_what_leaves, round_of):
    """Write the LOCAL pieces of the first weights, and what each reply of a round carries, beside the states."""
    from shared_components.federation.store import save_tensors
    from shared_components.partition import Role, cut

    def first(self, bench, job, run):
        say_what_leaves(self, bench, job, run)
        folder = self._files(job, run).folder
        folder.mkdir(parents=True, exist_ok=True)
        own = cut(bench.network.state_dict(), bench.partition, Role.LOCAL)
        save_tensors(folder / "noted-first.safetensors", own, {})

    def noted(self, job, site, message):
        reply = round_of(self, job, site, message)
        folder = self._files(job, message.header["run"]).folder
        save_tensors(folder / f"noted-{message.header['round']:05d}.safetensors", reply.pieces, {})
        return reply

    return first, noted


SiteRunner._say_what_leaves, SiteRunner._round = _noting(SiteRunner._say_what_leaves, SiteRunner._round)
'''
LEAK = '''

def _leaking(round_of):
    """Send the LOCAL pieces of a round with the others."""
    from dataclasses import replace

    from shared_components.federation.site_state import OWN
    from shared_components.partition import below

    def leaking(self, job, site, message):
        reply = round_of(self, job, site, message)
        if self.name not in {names!r}:
            return reply
        _, kept, _ = self._files(job, message.header["run"]).load()
        return replace(reply, pieces=reply.pieces | below(OWN, kept))

    return leaking


SiteRunner._round = _leaking(SiteRunner._round)
'''
COMMANDS = '''

def _commanding(round_of):
    """Send FLARE's commands to other parties' processes after the first round, and note what comes back."""
    from nvflare.apis.shareable import Shareable
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.cellnet.utils import new_cell_message

    from shared_components.atomic import write_json

    def commanding(self, job, site, message):
        reply = round_of(self, job, site, message)
        if self.name == {name!r} and message.header["round"] == 0:
            (cell,) = (cell for name, cell in CoreCell.ALL_CELLS.items() if name.startswith(self.name + "."))
            run = cell.get_fqcn().partition(".")[2]
            answers = []
            for channel, topic, to in {commands!r}:
                request = new_cell_message({{}}, Shareable())
                answer = cell.send_request(channel, topic, to.replace("JOB", run), request, timeout=2)
                answers.append(answer.get_header(MessageHeaderKey.RETURN_CODE))
            write_json(self._files(job, message.header["run"]).folder / {answers!r}, answers)
        return reply

    return commanding


SiteRunner._round = _commanding(SiteRunner._round)
'''
ANSWERS = "answers.json"


def record_frames(installed: Path) -> None:
    """Let every process of a deployment record what it hands to the network."""
    (installed / "sitecustomize.py").write_text(Path(recorder.__file__).read_text())


def note(installed: Path) -> None:
    """Let sites note what they hold at first, and what they answer."""
    _append(installed, NOTES)


def leak(installed: Path, *names: str) -> None:
    """Let these sites send their LOCAL pieces, too."""
    _append(installed, LEAK.format(names=names))


def command(installed: Path, name: str, commands: list[tuple[str, str, str]]) -> None:
    """Let a site send FLARE's commands: channel, topic, and to whom, with ``JOB`` for the job's id.

    The answers' return codes are left in `ANSWERS` in its folder of the run.
    """
    _append(installed, COMMANDS.format(name=name, commands=commands, answers=ANSWERS))


def _append(installed: Path, code: str) -> None:
    path = installed / "shared_components" / "federation" / "site.py"
    path.write_text(path.read_text() + code)
