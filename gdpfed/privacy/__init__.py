"""Privacy plans (client groups, sampling and noise), the epsilon they guarantee, and ledgers of its use."""
