"""The component at the server that reports lost sites to their running jobs; FLARE would end the jobs."""

from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext

from shared_components.flare.patches.incoming_messages import stand_guard
from shared_components.flare.patches.lost_sites import AGAIN, judge_in_flares_place, lose, note_not_given, started_again
from shared_components.flare.patches.replace import or_end


class LostSites(FLComponent):
    """Tell running jobs which of their sites are lost."""

    def __init__(self) -> None:
        super().__init__()
        stand_guard()  # an older kit may lack `peers.KeepToTheServer`

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Handle the reports once the server has started, and notice restarted sites when they register."""
        engine: Any = fl_ctx.get_engine()
        if event_type == EventType.SYSTEM_START:
            with or_end("what judges the loss of a site"):
                judge_in_flares_place(engine)
        elif event_type == EventType.CLIENT_REGISTER_PROCESSED:
            for job, site in started_again(engine.run_processes, engine.get_clients()):
                lose(engine, job, {site: AGAIN})
        elif event_type == EventType.JOB_DEPLOYED:
            note_not_given(fl_ctx)
