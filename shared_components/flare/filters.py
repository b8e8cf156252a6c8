"""Site-side filters that check what leaves the site, independently of the executor.

The jobs here name the filter for their results; as any component of a job it gets FLARE's event of every task. A
hospital need not rely on the job: in its own `local/privacy.json` the filter stands twice, because a privacy scope's
filters get no events; on the way in it notes the task, on the way out it checks the reply.

    {
      "scopes": [{
        "name": "surgfl",
        "task_data_filters":
          [{"path": "shared_components.flare.filters.DeclaredPiecesOnly", "args": {}, "direction": "in"}],
        "task_result_filters":
          [{"path": "shared_components.flare.filters.DeclaredPiecesOnly", "args": {}, "direction": "out"}]
      }],
      "default_scope": "surgfl"
    }
"""

from dataclasses import replace
from weakref import WeakKeyDictionary

from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from shared_components.federation.messages.parse_request import parse_request_header
from shared_components.federation.setup.find_site import find_site
from shared_components.federation.site.agreed_job import agreed_job, keep_agreed
from shared_components.flare import wire
from shared_components.flare.outgoing_check import check_reply
from shared_components.flare.paths import is_simulator, local_folder, runs_folder

LONGEST_REASON = 2000  # characters of a refusal

# FLARE makes a context per task. All filters of a process share the notes: in a privacy scope the one that notes is
# not the one that checks. A note is no property of the context, which the executor could change.
_tasks: WeakKeyDictionary[FLContext, tuple[str, object]] = WeakKeyDictionary()  # name, header


class DeclaredPiecesOnly(Filter):
    """Let a result pass only if everything in it is what this task of this job may send from this site.

    That is: GLOBAL and MIXED pieces of the method's partition, extras that the method's own check accepts, at the
    finish the whole model of a site that consents, profile items that the site publishes, and the plain values of
    `schema.REPLY`; of a refusal the sentence alone. What may leave follows from the job that the site enrolled
    with in this run and from its own site.yaml, never from a later message's job or from the reply that is checked. It
    fails closed: on any doubt nothing is sent, and the job gets an error.
    """

    def __init__(self) -> None:
        super().__init__()
        wire.register()
        self._answered: tuple[str, object] | None = None  # a task has one answer

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note the task that is about to be executed."""
        if event_type == EventType.BEFORE_TASK_EXECUTION:
            _note(fl_ctx, fl_ctx.get_prop(FLContextKey.TASK_DATA))

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return what was checked of a result, and nothing else; raise to let FLARE send an error instead.

        On the way in, note the task.
        """
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            _note(fl_ctx, shareable)
            return shareable
        if shareable.get_return_code(ReturnCode.OK) != ReturnCode.OK:
            return _sentence_alone(shareable)
        task = _tasks.get(fl_ctx)
        if task is None or task is self._answered:
            raise ValueError("the filter has not seen the task that this answers; nothing was sent")
        self._answered = task
        request = parse_request_header(*task)
        message = wire.from_wire(shareable)
        name, runs = fl_ctx.get_identity_name(), runs_folder(fl_ctx)
        request = replace(request, job=agreed_job(request, runs, site=name))
        site = find_site(
            name,
            local=local_folder(fl_ctx),
            scenes=runs / "scenes" if is_simulator(fl_ctx) else None,
            job=request.job,
            index=request.place.number,
        )
        check_reply(message, request, site)
        keep_agreed(request, runs, site=name)  # whatever executor has enrolled
        return wire.to_shareable(message)


def _note(fl_ctx: FLContext, data: Shareable) -> None:
    _tasks.pop(fl_ctx, None)  # where the data cannot be read, no earlier task is taken for this one
    _tasks[fl_ctx] = fl_ctx.get_prop(FLContextKey.TASK_NAME), wire.from_wire(data).header


def _sentence_alone(refusal: Shareable) -> Shareable:
    """Return an error reply without anything else that it carries."""
    reply = make_reply(str(refusal.get_return_code())[:LONGEST_REASON])
    if reason := refusal.get_header(wire.ERROR):
        reply.set_header(wire.ERROR, str(reason)[:LONGEST_REASON])
    return reply
