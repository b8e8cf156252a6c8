"""The server's component that reports lost sites to their running jobs; FLARE itself would end the jobs."""

from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext

from shared_components.flare.patches import site_losses
from shared_components.flare.patches.connections import check_incoming_messages
from shared_components.flare.patches.replace import end_process


class LostSites(FLComponent):
    """Report to running jobs which of their sites are lost."""

    def __init__(self) -> None:
        super().__init__()
        check_incoming_messages()  # an older kit may lack `peers.KeepToTheServer`

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Handle reports from the server's start on, and detect restarted sites when they register."""
        engine: Any = fl_ctx.get_engine()
        if event_type == EventType.SYSTEM_START:
            try:
                site_losses.handle_reports(engine)
            except Exception as error:  # FLARE would swallow it
                end_process(f"the handler of lost sites cannot be installed ({type(error).__name__}: {error})")
        elif event_type == EventType.CLIENT_REGISTER_PROCESSED:
            for job, site in site_losses.restarted_sites(engine.run_processes, engine.get_clients()):
                site_losses.record_lost(engine, job, {site: site_losses.AGAIN})
        elif event_type == EventType.JOB_DEPLOYED:
            site_losses.record_undeployed(fl_ctx)
