"""Refuse a kit whose files do not restrict its processes; a kit's `startup/sub_start.sh` runs this with its folder.

`surgfl secure-kit --check` does the same, but imports torch first.
"""

import sys
from pathlib import Path

from shared_components.flare.deployment.kits import KitError, find_kit, refuse_open

if __name__ == "__main__":
    try:
        refuse_open(find_kit(Path(sys.argv[1])))
    except KitError as error:
        sys.exit(f"surgfl: {error}")
