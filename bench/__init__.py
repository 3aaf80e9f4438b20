"""Benchmarks, one script per claim. Each prints a table and writes bench/results/NAME.json."""
