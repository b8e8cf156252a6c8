"""An executor that, in the second round, sends what must stay at home and says that the job is another one."""

from __future__ import annotations

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from shared_components.flare import wire
from shared_components.flare.executor import SiteExecutor

WHERE, HEAD = "site-2", "head_global.bias"


class Liar(SiteExecutor):
    """Honest in the first round, everywhere but at `WHERE`, and at the finish."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer as the real executor does, and lie in round 1, counted from 0."""
        import torch

        from shared_components.federation.messages import Message

        round = wire.from_wire(shareable).header["round"]
        result = super().execute(task_name, shareable, fl_ctx, abort_signal)
        if task_name != "round" or round != 1 or fl_ctx.get_identity_name() != WHERE:
            return result
        reply = wire.from_wire(result)
        return wire.to_shareable(Message(reply.header, {**reply.pieces, HEAD: torch.zeros(4)}, reply.groups))
