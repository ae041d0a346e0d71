"""Accounts for what was done to the records: events, claims, noise, schedules, private counts."""
