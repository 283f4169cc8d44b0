"""From a run folder's data to one self-contained HTML page. Pure: same input, same output."""
