"""Sites, samples and clips, readers of data sets, a hospital's own data, synthetic scenes."""
