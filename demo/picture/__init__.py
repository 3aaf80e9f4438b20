"""Draws a Grafana dashboard from its JSON and the data of a Prometheus. It imitates Grafana's dark
theme.
"""
