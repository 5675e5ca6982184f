"""What is published of this project, made from the checkout: RELEASING.md says how."""
