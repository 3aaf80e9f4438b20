"""Jobs that no reasonable user writes, at a real API server and a real operator."""
