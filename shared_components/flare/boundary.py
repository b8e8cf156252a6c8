"""The component that lets no process of a deployment start without the files that restrict it."""

import argparse
from pathlib import Path

from nvflare.apis.fl_component import FLComponent

from shared_components.flare.deployment.kits import REMEDY, find_kit, why_open
from shared_components.flare.patches.replace import end_process


class RequireBoundary(FLComponent):
    """End the process if the files in the kit's `local` do not restrict it.

    FLARE starts without `local/resources.json`, which `nvflare deploy prepare` removes, and allows what its defaults
    allow. `startup/fed_server.json` and `fed_client.json` name this class: every process reads them first.
    """

    def __init__(self) -> None:
        super().__init__()
        parser = argparse.ArgumentParser()
        parser.add_argument("--workspace", "-m", type=Path, required=True)  # as all of FLARE's processes have it
        kit = find_kit(parser.parse_known_args()[0].workspace)
        if why := why_open(kit):
            end_process(why, REMEDY.format(kit.folder))
