"""What learners import for an exercise: models, recordings and programs that a question starts from."""
