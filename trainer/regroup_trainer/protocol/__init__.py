"""What operator, coordinator, agents and ranks send each other. Free of torch."""
