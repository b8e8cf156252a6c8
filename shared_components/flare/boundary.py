"""The component that ends every process of a deployment without the files that restrict it."""

import argparse
from pathlib import Path

from nvflare.apis.fl_component import FLComponent

from shared_components.flare.deployment.kits import REMEDY, Kit, find_kit, open_problem
from shared_components.flare.patches.replace import end_process


class RequireBoundary(FLComponent):
    """End the process if the files in the kit's `local` do not restrict it.

    FLARE starts without `local/resources.json`, for example after `nvflare deploy prepare`, and then uses its own
    permissive defaults. `startup/fed_server.json` and `fed_client.json` name this class: every process reads them
    first.
    """

    def __init__(self) -> None:
        super().__init__()
        kit = kit_of_process()
        if problem := open_problem(kit):
            end_process(problem, REMEDY.format(kit.folder))


def kit_of_process() -> Kit:
    """Return the startup kit in this process's ``--workspace``; KitError if there is none."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workspace", "-m", type=Path, required=True)  # all processes of FLARE have it
    return find_kit(parser.parse_known_args()[0].workspace)
