"""Federated methods, one per file, each a partition, a local objective and a server aggregator."""
