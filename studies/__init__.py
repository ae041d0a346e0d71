"""Systems of the papers that can be compared and are not released: outside of the wheel, the ledger
and Prefect.
"""
