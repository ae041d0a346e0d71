"""What was done to the records and what it costs: events, claims, noise, schedules, private counts."""
