"""Deployments: the parties of a federation, their startup kits and certificates, and the jobs that they accept."""
