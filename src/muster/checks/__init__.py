"""`muster check`: inspects hosts and the fabric between them. families/ has the checks."""
