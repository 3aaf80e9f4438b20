"""Benchmarks: one script per claim; every one prints a table and writes bench/results/NAME.json."""
