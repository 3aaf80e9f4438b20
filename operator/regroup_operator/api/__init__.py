"""The TrainingJob API: what a user can write, and what the operator answers."""
