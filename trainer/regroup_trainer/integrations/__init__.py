"""Lightning, transformers and Accelerate in a job. Each module needs its own library."""
