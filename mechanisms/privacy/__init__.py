"""Privacy accounting: events, claims, noise, schedules, and private counts."""
