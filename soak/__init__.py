"""Seeded random faults on a real cluster, judged by a checker without any code of the product."""
