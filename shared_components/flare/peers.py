"""The component that protects every process of a deployment before it connects to another party."""

from nvflare.apis.fl_component import FLComponent

from shared_components.flare.log_lines import mark_lines
from shared_components.flare.patches.connections import check_incoming_messages, number_streams, restrict_connections
from shared_components.flare.patches.job_configuration import import_only_installed, read_only_json
from shared_components.flare.patches.region_routes import keep_within_region
from shared_components.flare.patches.site_commands import restrict_commands


class KeepToTheServer(FLComponent):
    """Install the patches of every process; part of `local/resources.json` of the server and of every site."""

    def __init__(self) -> None:
        super().__init__()
        read_only_json()
        import_only_installed()
        check_incoming_messages()
        restrict_commands()
        restrict_connections()
        number_streams()
        keep_within_region()
        mark_lines()
