"""Everything outside Python's memory: rollout pool, sandbox, trainer group, object store, services.

May import rstar2 only. Knows no Prefect and no DuckDB.
"""
