"""FLARE passes every text of a job's JSON to `str.format`, which changes text that only looks like a format."""

import json
import sys
import tempfile
from pathlib import Path

from nvflare.private.json_configer import JsonConfigurator

TEXTS = {"title": "margin {SITE_NAME:>20}", "pattern": "frame_{0}.png", "set": "{title}"}


def main() -> int:
    """Print each text of a configuration before and after; return 0 if FLARE has changed one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config_fed_server.json"
        path.write_text(json.dumps(TEXTS), encoding="utf-8")
        read = JsonConfigurator(str(path), base_pkgs=[], module_names=[], sys_vars={"SITE_NAME": "site-1"})
        read.configure()
    for key, text in TEXTS.items():
        print(f"{key}: {text!r} becomes {read.config_data[key]!r}")
    return 0 if read.config_data != TEXTS else 1


if __name__ == "__main__":
    sys.exit(main())
