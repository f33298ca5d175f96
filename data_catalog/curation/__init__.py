"""Which rows of many files become one problem set, and why each other row does not.

`curate.py` orders the rest: start reading there.
"""
