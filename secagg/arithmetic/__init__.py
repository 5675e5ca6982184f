"""Numbers of one sum: real updates and noise as integers modulo 2**b, packed into bytes."""
