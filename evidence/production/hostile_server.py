"""A modified server that asks sites' processes and their jobs' processes for secrets.

The program is appended to a module that only the server's process loads. It sends the requests of a file as soon as the
file exists, and writes the answers beside it. It deploys jobs without a check of the submitter.
"""

import json
from pathlib import Path
from typing import Any

from evidence.production.deployment import until
from shared_components.common.atomic import write_text

CODE = '''

def _asking(file):
    """Send the requests of a file from the server's own cell, by FLARE's own means, and write down what comes back."""
    import json
    import os
    import threading
    import time

    from nvflare.apis.event_type import EventType
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.cellnet.utils import encode_payload, new_cell_message
    from nvflare.private.admin_defs import Message as Command

    def ask(cell, one):
        payload = one["body"]
        if one["command"]:
            payload = Command(one["command"], one["body"])
            payload.set_headers(one["said"])
        request = new_cell_message({{}}, payload)
        if one["by"]:  # handed on by another cell, in whosever name; nobody waits for an answer
            request.add_headers(one["headers"])
            encode_payload(request, fobs_ctx=cell.get_fobs_context())
            core = cell.core_cell
            core.communicator.send(core.agents[one["by"]].endpoint, CoreCell.APP_ID, request)
            return ""
        answer = cell.send_request(
            channel=one["channel"], topic=one["topic"], target=one["to"], request=request, timeout=one["wait"]
        )
        body = getattr(answer.payload, "body", answer.payload)
        return f"{{answer.get_header(MessageHeaderKey.RETURN_CODE)}}: {{body!r}}"

    def wait_and_ask(cell):
        while True:
            time.sleep(0.1)
            if not os.path.exists(file):
                continue
            with open(file) as text:
                requests = json.load(text)
            os.remove(file)
            answers = []
            for one in requests:
                try:
                    answers.append(ask(cell, one))
                except Exception as error:
                    answers.append(f"{{type(error).__name__}}: {{error}}")
            with open(f"{{file}}.new", "w") as text:
                json.dump(answers, text)
            os.rename(f"{{file}}.new", f"{{file}}.answers")

    handle = LostSites.handle_event

    def handle_event(self, event_type, fl_ctx):
        handle(self, event_type, fl_ctx)
        if event_type == EventType.SYSTEM_START:
            cell = fl_ctx.get_engine().server.cell
            threading.Thread(target=wait_and_ask, args=(cell,), daemon=True).start()

    LostSites.handle_event = handle_event


def _asking_nobody():
    """Let every message that gives out a job say that a site need not ask its own file, and a role that may all."""
    from nvflare.private.defs import RequestHeader
    from nvflare.private.fed.server.job_runner import JobRunner

    make = JobRunner._make_deploy_message

    def say(*arguments):
        message = make(*arguments)
        message.set_headers({{RequestHeader.REQUIRE_AUTHZ: "false", RequestHeader.SUBMITTER_ROLE: "project_admin"}})
        return message

    JobRunner._make_deploy_message = staticmethod(say)


_asking({file!r})
_asking_nobody()
'''
UNGUARDED = """

import os

if os.environ.get("SURGFL_TEST_DEPLOYMENT", "").rpartition("/")[2] == {name!r}:
    check_incoming_messages = restrict_commands = lambda: None
"""
REQUEST: dict[str, Any] = {
    "command": "", "body": "", "said": {}, "by": "", "headers": {}, "channel": "admin", "topic": "admin", "to": "",
    "wait": 2.0,
}  # fmt: skip


class HostileServer:
    """Modified server program of a deployment that has not been started.

    Args:
        installed: Installation folder of the deployment.
        file: File with requests.
    """

    def __init__(self, installed: Path, file: Path) -> None:
        self._file = file
        path = installed / "shared_components" / "flare" / "lost_sites.py"
        path.write_text(path.read_text("utf-8") + CODE.format(file=str(file)))

    def ask(self, requests: list[dict[str, Any]], *, seconds: float = 300) -> list[str]:
        """Send requests with the keys of `REQUEST` from the modified server; return the texts of the answers."""
        answers = Path(f"{self._file}.answers")
        write_text(self._file, json.dumps([{**REQUEST, **one} for one in requests]))
        until(answers.exists, seconds, "the server has not sent all requests")
        said: list[str] = json.loads(answers.read_text(encoding="utf-8"))
        answers.unlink()
        return said


def unguard(installed: Path, name: str) -> None:
    """Remove our message checks from a site's processes, as in plain FLARE."""
    path = installed / "shared_components" / "flare" / "peers.py"
    path.write_text(path.read_text("utf-8") + UNGUARDED.format(name=name))
