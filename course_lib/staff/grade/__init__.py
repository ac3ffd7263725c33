"""Grade a class: every submission in a sandbox, every answer judged outside it.

`course grade` drives it. The learner's code meets the probes alone; targets and
references never enter the sandbox, and answers leave it as JSON and plain arrays.
"""
