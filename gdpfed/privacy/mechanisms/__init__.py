"""The mechanisms, one file each: what is charged of a run, and the terms that a node agrees to."""

from gdpfed.privacy.mechanisms import own_spending, record_sums, sampled_sums, subnet_sums

__all__ = ["own_spending", "record_sums", "sampled_sums", "subnet_sums"]
