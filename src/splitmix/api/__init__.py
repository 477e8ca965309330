"""In Python: training in a call, and the trained model that it gives."""
