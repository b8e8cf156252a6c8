"""The records of a run at its server: every reply, every aggregation and the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_components.common.atomic import write_text
from shared_components.core.method import site_order
from shared_components.core.partition import Partition, Role
from shared_components.federation.messages import Message, Reply, total_bytes
from shared_components.federation.server.upload import Plain

Record = dict[str, Any]


class RoundLog:
    """The records of a run in order, as ``rounds.jsonl`` holds them; ``upload`` decides what a reply's record has."""

    def __init__(self, path: Path, upload: Plain) -> None:
        self._path = path
        self._upload = upload
        self.records: list[Record] = []
        self._noted: dict[str, Record] = {}  # of the round under way

    def note(self, site: str, reply: Reply, sent: Message, partition: Partition, *, round: int) -> Record:
        """Record a site's ``reply`` to ``sent`` once in the round under way; return the record."""
        if site not in self._noted:
            values = self._upload.recorded_values(reply)
            bytes_ = {"up": _bytes(reply, partition), "down": _bytes(sent, partition)}
            self._noted[site] = {"kind": "site", "round": round, "site": site, **values, "bytes": bytes_}
        return self._noted[site]

    def close(self, *records: Mapping[str, Any]) -> None:
        """End a round: append the replies' records in order of site, then these."""
        self.records += [self._noted[site] for site in site_order(self._noted)] + [dict(r) for r in records]
        self._noted = {}

    def spent(self) -> Record:
        """Return the fields on privacy spent so far, for the aggregation's record."""
        return self._upload.spent([*self.records, *self._noted.values()])

    def write(self) -> None:
        """Rewrite the file."""
        write_text(self._path, "".join(json.dumps(record) + "\n" for record in self.records))


def _bytes(message: Message, partition: Partition) -> dict[str, int]:
    sizes = {group: total_bytes(pieces) for group, pieces in message.groups.items()}
    for role in (Role.GLOBAL, Role.MIXED):
        names = partition.with_roles(role)
        if pieces := {name: message.pieces[name] for name in names if name in message.pieces}:
            sizes[role.value] = total_bytes(pieces)
    return sizes
