"""The units that Prefect retries, times and records: references in, one call, references out.

"Task" means a Prefect task here and nothing else. May import infra, data_catalog and rstar2.
"""
