"""One client's reply ends a job for all clients, whatever `min_clients` is: by its return code, or by its bytes."""

import os
import sys
from types import SimpleNamespace
from unittest.mock import patch

from nvflare.apis.fl_constant import FLContextKey, ReturnCode, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.fuel.f3.cellnet.cell import Adapter
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.private.fed.server.server_runner import ServerRunner

HEADERS = {
    StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND, StreamHeaderKey.TOPIC: ServerCommandNames.SUBMIT_UPDATE,
    StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
}  # fmt: skip


def ends_by_code(code: str) -> bool:
    """Return whether the server's runner of a job panics because one client has replied with a return code."""
    reasons: list[str] = []
    peer, context = FLContext(), FLContext()
    peer.set_prop(FLContextKey.CURRENT_RUN, "job", private=False, sticky=False)
    context.set_peer_context(peer)
    runner = ServerRunner.__new__(ServerRunner)
    runner.__dict__.update(
        job_id="job", log_info=lambda *_: None, log_error=lambda *_: None, _report_client_active=lambda *_: None,
        system_panic=lambda reason, fl_ctx: reasons.append(reason),
    )  # fmt: skip
    with patch("nvflare.private.fed.server.server_runner.add_job_audit_event"):
        runner._process_submission(SimpleNamespace(name="client"), "train", "id", make_reply(code), context)
    return bool(reasons)


def ends_by_bytes() -> bool:
    """Return whether the server's process of a job exits because one client's reply cannot be decoded."""
    passed: dict[str, set[str]] = {"decode_pass_through_channels": set(), "decode_pass_through_topics": set()}
    cell = SimpleNamespace(**passed, get_fobs_context=lambda props: {})
    adapter = Adapter(lambda request: None, SimpleNamespace(fqcn="server.job"), cell)
    with patch.object(os, "_exit", side_effect=SystemExit):
        try:
            adapter.call(SimpleNamespace(headers=HEADERS, result=lambda: b"truncated"))
        except SystemExit:
            return True
        except Exception as error:
            print(f"raised {type(error).__name__}: {error}")
    return False


def main() -> int:
    """Print what ends the job; return 0 if a return code and bytes that cannot be decoded both do."""
    codes = (ReturnCode.TASK_UNKNOWN, ReturnCode.RUN_MISMATCH, ReturnCode.UNSAFE_JOB)
    ended = [code for code in codes if ends_by_code(code)]
    exits = ends_by_bytes()
    print(f"return codes that end the job: {', '.join(ended) or 'none'}")
    print(f"bytes that cannot be decoded end the process of the job: {'yes' if exits else 'no'}")
    return 0 if ended and exits else 1


if __name__ == "__main__":
    sys.exit(main())
