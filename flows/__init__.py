"""Prefect flows, deployments and the `rstar2` command: what happens, in which order.

May import tasks, infra (to open resources), `rstar2.config` and `rstar2.types`. A command under
`commands/` may import any room, inside the function, so that those which need neither Prefect nor
torch load neither.
"""
