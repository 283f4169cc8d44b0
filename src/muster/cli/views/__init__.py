"""What verbs print: tables, verdicts and plans for people, and live progress."""
