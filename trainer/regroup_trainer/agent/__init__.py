"""The agent, PID 1 of a worker: heartbeats, the template process and its ranks. Free of torch."""
