"""The algorithmic core of rStar2: what is computed, by which equation.

Imports no other room. Holds the nouns (`types`), the configuration (`config`), chat and tool-call
parsing, the agent loop, grading, GRPO-RoC, gates and losses. Starts no process, opens no file
outside `rollout_files`, knows neither Prefect nor DuckDB nor S3.
"""
