"""What lecturers and maintainers need: the class grader, certificates, the site, notebooks made and stored."""
