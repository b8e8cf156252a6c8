"""The federation's protocol without its transport: what a site and the server do, as plain Python.

`shared_components.flare` carries these messages with NVIDIA FLARE; tests and benchmarks carry them by hand.
"""
