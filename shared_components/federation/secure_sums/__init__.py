"""Secure sums: the server learns the sum of the sites' weights and nothing else (``docs/how-to/secure-sums.md``).

Double masks and shares after Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning,
ACM CCS 2017; keys that serve many rounds, and shares that travel with the masked numbers, after Ma et al., Flamingo,
IEEE S&P 2023. No transport, no state, no network.
"""
