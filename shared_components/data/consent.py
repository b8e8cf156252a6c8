"""What a site.yaml may name under `publish` and `withhold`."""

from collections.abc import Mapping

PUBLISHABLE = ("style", "text", "model", "result")
"""What `publish` may name: profile items; ``model`` lets the site's whole model take part in the outsider's,
``result`` puts it into the job's result by itself."""


WITHHELD: Mapping[str, str] = {
    "loss": "loss",
    "metrics": "scores",
    "final": "scores",
    "seconds": "seconds",
    "memory_mb": "memory",
}
"""What of a reply's plain values only the record is for: under which name `withhold` keeps it at the site."""
WITHHOLDABLE = tuple(dict.fromkeys(WITHHELD.values()))
