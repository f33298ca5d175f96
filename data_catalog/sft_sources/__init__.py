"""The public data sets of the SFT mixture (report §4.1), each in a module of its own.

A module knows the columns in which its set is published, from the set's card, and turns a row into what
was said. `draft` writes that in the recipe's template, `mixture` draws the shares and counts what was
left out. None of the loaders was run on the real file: each is tested on rows in the published layout.
"""
