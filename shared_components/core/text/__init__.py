"""From a text to a vector that a network reads; `encoders` lists the kinds of encoder."""
