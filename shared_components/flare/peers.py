"""The component that protects every process of a deployment before it connects to anybody."""

from nvflare.apis.fl_component import FLComponent

from shared_components.flare.log_lines import mark_lines
from shared_components.flare.patches.incoming_messages import stand_guard
from shared_components.flare.patches.job_configuration import import_only_installed, read_only_json
from shared_components.flare.patches.peer_connections import keep_to_the_server
from shared_components.flare.patches.site_commands import keep_commands
from shared_components.flare.patches.stream_ids import count_streams


class KeepToTheServer(FLComponent):
    """Install the patches of every process; in the `local/resources.json` of the server and of every site."""

    def __init__(self) -> None:
        super().__init__()
        read_only_json()
        import_only_installed()
        stand_guard()
        keep_commands()
        keep_to_the_server()
        count_streams()
        mark_lines()
