"""What a hostile site sends and what can be read out of what is sent; of tests and benchmarks, and never installed."""
