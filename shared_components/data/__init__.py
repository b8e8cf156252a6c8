"""Sites, samples and clips, readers of public data sets, and a hospital's own data."""
