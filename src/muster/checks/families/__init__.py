"""One family of checks a file: what to ask (`probe`, which runs on the hosts) and how to judge the answers
(`judge`, pure, here). `muster.checks.base` defines a family."""
