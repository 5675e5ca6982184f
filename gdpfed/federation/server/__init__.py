"""The server's side of a federation: which nodes join, what they are asked, and which are left out."""
