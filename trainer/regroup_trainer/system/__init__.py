"""The machine: durable files, memory limits, clocks, threads, child processes. Torch-free."""
