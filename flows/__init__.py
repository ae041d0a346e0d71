"""The `autocoder` command (`cli`, `commands`) and the flows of Prefect that it and a server run.

A flow orders the stages of `tasks`; `server` has what concerns a Prefect server: deployments,
schedules, waiting runs.
"""
