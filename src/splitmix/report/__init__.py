"""Tables, pictures and pages, made of what runs left."""
