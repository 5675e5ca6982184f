"""Who is asked, and how much each spends: FedPCS and the samplings that it is measured against."""
