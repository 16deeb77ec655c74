"""The command line: one file per group of verbs. Anything heavy is imported inside a verb."""
