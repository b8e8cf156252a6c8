"""Run a region's relay: FLARE's relay, restricted to the messages of its region.

The relay connects the region's sites and its node to the server. It runs no job: the node sums the sites' updates. A
relay's `startup/sub_start.sh` runs this program, since FLARE's relay reads no components that would restrict it.
"""

import sys

from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.relay import relay

from shared_components.flare.deployment.kits import REMEDY, find_kit, open_problem
from shared_components.flare.patches.connections import check_incoming_messages, number_streams, restrict_connections
from shared_components.flare.patches.replace import end_process


def main() -> int:
    """Check the kit, install the filters and run FLARE's relay until it is stopped; return its exit status."""
    arguments = relay.parse_arguments()
    kit = find_kit(arguments.workspace)
    if problem := open_problem(kit):
        end_process(problem, REMEDY.format(kit.folder))
    check_incoming_messages()
    restrict_connections()
    number_streams()
    return MainProcessMonitor.run(main_func=relay.main, run_dir=arguments.workspace, args=arguments)


if __name__ == "__main__":
    sys.exit(main())
