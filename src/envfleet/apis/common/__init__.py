"""What views of several libraries share."""
