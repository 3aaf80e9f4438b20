"""The Python client: sends functions, scripts and typed jobs to a cluster or to this machine."""
