"""One file per `surgfl` sub-command."""
