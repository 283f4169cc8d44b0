"""One family of checks a file. What to ask (`probe`, which runs on the hosts) and how to judge the answers
(`judge`, pure, here). `muster.checks.base` says what a family is."""
