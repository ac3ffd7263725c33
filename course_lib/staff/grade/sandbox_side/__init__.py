"""What runs inside the sandbox: the learner's cells and the probes. No target, no reference, no result.

One warmed process forks a child per submission; the child encloses itself in
namespaces of its own, so that nothing passes from one submission to the next.
"""

SCRATCH = "/scratch"  # the only folder inside that can be written
