"""How fast, and at what cost, operators make the pods of many jobs."""
