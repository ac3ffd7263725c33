"""A completion certificate: the learner's own claim, and what an instructor confirms and signs."""
