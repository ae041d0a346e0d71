"""Prefect's server: settings, background services, automations, runs that wait."""
