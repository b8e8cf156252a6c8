"""Mathematics of secure sums: the server learns only the sum of the sites' weights (``docs/how-to/secure-sums.md``).

Double masks and shares: Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, ACM CCS
2017. Keys for many rounds, and shares sent with the masked numbers: Ma et al., Flamingo, IEEE S&P 2023.
"""
