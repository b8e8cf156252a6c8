"""Messages between server and site, the job that they belong to, and their parsers."""

from shared_components.federation.messages.job import BF16, FLOAT32, Job, Wire, folder_name, with_changes
from shared_components.federation.messages.message import (
    FederationError,
    Message,
    Place,
    RejectedUpdate,
    Reply,
    Request,
    SiteRefusal,
    total_bytes,
)

__all__ = [
    "BF16", "FLOAT32", "FederationError", "Job", "Message", "Place", "RejectedUpdate", "Reply", "Request",
    "SiteRefusal", "Wire", "folder_name", "total_bytes", "with_changes",
]  # fmt: skip
