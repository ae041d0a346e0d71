"""The HTTP service of one released bundle: `/code`, `/file` and its two pages, closed by a key.

Requests are coded in memory and are neither stored nor logged.
"""
