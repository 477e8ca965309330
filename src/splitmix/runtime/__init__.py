"""A trained model at run time: any width, nothing retrained, nothing reloaded."""
