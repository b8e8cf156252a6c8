"""A site: enrolment, local training, upload, and the report of everything that leaves."""
