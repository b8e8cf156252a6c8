"""Attacks by a hostile site, and attacks on updates; only for tests and benchmarks, never installed."""
