"""A run with several learners (run.learners): each has its share of the actors and the replay."""
