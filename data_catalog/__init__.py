"""The memory of the house: the DuckDB catalogue, where problems come from, who was filtered and why.

The only importer of duckdb. May import rstar2 only.
"""
