"""What the operator observes, as immutable values. Pure."""
