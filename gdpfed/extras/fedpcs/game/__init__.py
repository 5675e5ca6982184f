"""The game of FedPCS: in each round, clients choose how much privacy to spend for a posted reward.

Pure numpy on public and declared numbers; nothing here sees data. Source: Yuan, Wang, "A Game-Theoretic
Framework for Privacy-Aware Client Sampling in Federated Learning", with its equations corrected.
"""
