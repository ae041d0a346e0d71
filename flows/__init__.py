"""The `autocoder` command (`cli`, `commands`), and the Prefect flows that the command and a server
run.

A flow orders the stages of `tasks`. `server` is for Prefect servers: deployments, schedules,
waiting runs.
"""
