"""Private mechanisms: each plans its noise, fits, and states the event that its claim follows from;
and audits.

Knows no Prefect and no database. `autocoder` names what a person imports.
"""
