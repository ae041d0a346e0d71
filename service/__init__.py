"""HTTP service for one released bundle: `/code`, `/file` and two pages, protected by an API key.

Requests are processed in memory. They are neither stored nor logged.
"""
