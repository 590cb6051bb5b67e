"""What several commands share: output, errors, options, views."""
