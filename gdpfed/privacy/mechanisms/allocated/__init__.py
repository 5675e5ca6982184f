"""Random allocation: noised sums over clients that take part in one secret round of each block of rounds."""
