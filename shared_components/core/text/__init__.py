"""From a site's text to a vector of numbers that a network reads; but for `tell`, knows nothing of methods."""
