"""The coordinator of a job: members, generations, status. Free of torch."""
