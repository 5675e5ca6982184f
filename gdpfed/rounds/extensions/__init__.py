"""Optional features of a run, one module each: ``base`` defines their interface, ``table`` lists them."""
