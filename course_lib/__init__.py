"""Runnable helpers of the distributed training course.

Importing this package imports no framework: each module brings in the one it
needs when you import that module.
"""
