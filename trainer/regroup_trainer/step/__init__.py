"""One optimizer step: accumulate gradients, reduce them, commit, clip, update."""
