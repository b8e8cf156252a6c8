"""The server: enrolment, client sampling, checks of updates, aggregation and state."""
