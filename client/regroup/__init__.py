"""Command lines and Python client. Importing it does not import torch."""
