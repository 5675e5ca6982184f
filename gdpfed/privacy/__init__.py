"""Privacy plans (client groups, sampling, noise), their epsilon, and ledgers of the privacy cost so far."""
