"""Set up local training at a site or at the server: its data, network, method, task, limits and loop."""
