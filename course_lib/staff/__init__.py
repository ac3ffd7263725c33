"""What lecturers and maintainers need, and no learner: the class grader, certificates, the site, notebooks made and stored."""
