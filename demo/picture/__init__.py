"""Draws a Grafana dashboard's JSON with the data of a Prometheus, in the likeness of Grafana's dark theme."""
