"""The probes: draw inputs from a seed, call the learner's code, read its state.

One module per exercise, exNN.py; a long part of one is in exNN_name.py. A probe imports
nothing from exercises/judges and returns only plain values (numbers, text, None, NumPy
arrays, lists and dicts of them); the inputs come from a function of the seed that the
judge's targets call again.
"""
