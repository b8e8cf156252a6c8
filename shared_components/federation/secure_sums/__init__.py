"""Sums of sites' weights of which the server learns nothing but the sum: whole numbers, masks and shares.

Double masks and shares after Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning,
ACM CCS 2017; keys that serve many rounds, and shares that travel with the masked numbers, after Ma et al., Flamingo,
IEEE S&P 2023. Docs: ``docs/secure-sums.md``. No transport, no state, no network.
"""
