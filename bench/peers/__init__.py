"""What others do, small enough to be run beside ours."""
