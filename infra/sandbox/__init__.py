"""Runs code nobody trusts and checks answers, behind the `Execute` protocol."""
