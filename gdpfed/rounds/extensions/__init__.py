"""What a round can do without, an option a file: `base` says what that is, `table` which there are."""
