"""Connects to Prefect's server: settings, background services, automations, waiting runs."""
