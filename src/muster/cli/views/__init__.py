"""What verbs print: tables, verdicts and plans for people, and the lines that change while something runs."""
