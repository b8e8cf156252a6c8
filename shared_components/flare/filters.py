"""Check everything that leaves a site, independently of the executor.

SurgFL's jobs name this filter for their results; like every component of a job, it then receives FLARE's events. A
hospital need not trust the job: its own `local/privacy.json`, which `surgfl secure-kit` writes, names the filter twice.
A privacy scope's filters receive no events, so the filter records the task on the way in, and checks the reply on the
way out.
"""

from dataclasses import replace
from weakref import WeakKeyDictionary

from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from shared_components.federation.messages.parse import parse_request_header
from shared_components.federation.setup.find_site import find_site
from shared_components.federation.site.agreed_job import agreed_job, keep_agreed
from shared_components.flare import wire
from shared_components.flare.outgoing_check import check_reply
from shared_components.flare.paths import is_node, is_simulator, local_folder, runs_folder

LONGEST_REASON = 2000  # characters of a refusal

# Name and header of each task. FLARE makes a context per task. All filters of a process share these records, because in
# a privacy scope different filters record and check. The executor could change a property of the context.
_tasks: WeakKeyDictionary[FLContext, tuple[str, object]] = WeakKeyDictionary()


class DeclaredPiecesOnly(Filter):
    """Let a result pass only if everything in it is permitted for this task of this job at this site.

    Permitted are GLOBAL and MIXED pieces of the method's partition, extras that the method's own check accepts, profile
    items that the site publishes, and the plain values in `schema.REPLY`. At the finish, a site that consents may send
    its whole model. A refusal contains only its sentence.

    The permission follows from the job that the site enrolled with in this run and from the site's own site.yaml, never
    from a later message or from the reply itself. On any doubt nothing is sent, and the job receives an error.
    """

    def __init__(self) -> None:
        super().__init__()
        wire.register()
        self._answered: tuple[str, object] | None = None  # a task has one answer

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Record the task that is about to be executed."""
        if event_type == EventType.BEFORE_TASK_EXECUTION:
            _record(fl_ctx, fl_ctx.get_prop(FLContextKey.TASK_DATA))

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return only the checked content of a result, or raise to let FLARE send an error; on the way in, record."""
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            _record(fl_ctx, shareable)
            return shareable
        if is_node(fl_ctx):
            return shareable  # a node has no data; each of its sites has checked what it sent
        if shareable.get_return_code(ReturnCode.OK) != ReturnCode.OK:
            return _only_reason(shareable)
        task = _tasks.get(fl_ctx)
        if task is None or task is self._answered:
            raise ValueError("the filter has not seen the task of this answer; nothing was sent")
        self._answered = task
        request = parse_request_header(*task)
        message = wire.from_wire(shareable)
        name, runs = fl_ctx.get_identity_name(), runs_folder(fl_ctx)
        request = replace(request, job=agreed_job(request, runs, site=name))
        local, scenes = local_folder(fl_ctx), runs / "scenes" if is_simulator(fl_ctx) else None
        site = find_site(name, local=local, scenes=scenes, job=request.job, index=request.place.number)
        check_reply(message, request, site)
        keep_agreed(request, runs, site=name)  # whatever executor has enrolled
        return wire.to_shareable(message)


def _record(fl_ctx: FLContext, data: Shareable) -> None:
    _tasks.pop(fl_ctx, None)  # if the data cannot be read, no earlier task counts
    _tasks[fl_ctx] = fl_ctx.get_prop(FLContextKey.TASK_NAME), wire.from_wire(data).header


def _only_reason(refusal: Shareable) -> Shareable:
    """Return an error reply with only its return code and reason."""
    reply = make_reply(str(refusal.get_return_code())[:LONGEST_REASON])
    if reason := refusal.get_header(wire.ERROR):
        reply.set_header(wire.ERROR, str(reason)[:LONGEST_REASON])
    return reply
