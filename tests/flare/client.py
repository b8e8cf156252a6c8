"""FLARE's own client runner in this process, around any executor."""

from collections.abc import Callable
from pathlib import Path

from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.private.fed.client.client_engine_executor_spec import TaskAssignment
from nvflare.private.fed.client.client_runner import ClientRunner, ClientRunnerConfig, TaskRouter
from nvflare.private.privacy_manager import Scope

JOB = "simulate_job"
TASKS = ("enrol", "round", "finish")
Answer = Callable[[str, Shareable, FLContext], Shareable]
HEAD = "head_global.bias"


class Answering(Executor):
    """An executor that answers by a function."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        return self.answer(task_name, shareable, fl_ctx)


class Engine:
    """The parts of an engine that FLARE's runner and our components use."""

    def __init__(self, handlers: list[FLComponent], root: Path) -> None:
        self.handlers, self.root = handlers, root

    def register_aux_message_handler(self, **_) -> None: ...

    def fire_event(self, event: str, fl_ctx: FLContext) -> None:
        fire_event_to_components(event, self.handlers, fl_ctx)

    def get_workspace(self):
        return self

    def get_root_dir(self) -> str:
        return str(self.root)


class Client:
    """One site's runner.

    Args:
        answer: Function of its executor.
        root: Its workspace.
        job: Filter of the job's config, which also receives FLARE's events; None for no filter.
        scope: Scope of the site's privacy.json, whose filters receive no events.
    """

    def __init__(self, answer: Answer, root: Path, *, job: Filter | None = None, scope: Scope | None = None) -> None:
        self.scope = scope
        executor, router = Answering(answer), TaskRouter()
        router.add_executor(list(TASKS), executor)
        own = [job] if job else []
        self.engine = Engine([executor, *own], root)
        config = ClientRunnerConfig(router, {}, {f"{task}/{FilterKey.OUT}": own for task in TASKS})
        self.runner = ClientRunner({}, config, JOB, self.engine)
        self.manager = FLContextManager(self.engine, root.name, JOB)

    def give(self, task: str, data: Shareable) -> Shareable:
        """Let the runner process a task, and return its reply."""
        with self.manager.new_context() as fl_ctx:
            return self.again(task, data, fl_ctx)

    def again(self, task: str, data: Shareable, fl_ctx: FLContext) -> Shareable:
        """Process a task in an existing context."""
        fl_ctx.set_prop(FLContextKey.SIMULATE_MODE, True, private=True)
        fl_ctx.set_prop(FLContextKey.SCOPE_OBJECT, self.scope, private=True, sticky=False)
        with FLContextManager(self.engine, "server", JOB).new_context() as peer:
            fl_ctx.set_peer_context(peer)
            return self.runner._process_task(TaskAssignment(task, "a-task", data), fl_ctx)
