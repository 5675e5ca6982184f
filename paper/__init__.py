"""The paper: its text, and the tables and pictures that it takes from the documents."""
