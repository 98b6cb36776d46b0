"""Break a healthy host in every way that is known, and see the right check fail."""
