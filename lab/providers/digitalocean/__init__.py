"""Droplets of DigitalOcean: the client of its API, and the provider that makes nodes with it."""
