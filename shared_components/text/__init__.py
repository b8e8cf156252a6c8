"""From a site's text to a vector of numbers that a network reads; knows nothing of methods and federations."""
