"""Benchmarks that print ratios measured in one run, and the effects of attacks; no timed tests."""
