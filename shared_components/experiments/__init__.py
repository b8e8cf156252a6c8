"""Compare methods over seeds and sites."""
