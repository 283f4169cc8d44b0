"""What a rank trains. A module per workload: `build(context, arguments) -> Built`, and `answer(...)`."""
