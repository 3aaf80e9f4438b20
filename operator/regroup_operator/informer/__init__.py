"""What the API server holds, in memory: read by list and watch, and by requests of our own."""
