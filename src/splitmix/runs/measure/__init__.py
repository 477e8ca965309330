"""A finished run, asked again: at other widths and dials, on other images, under attack."""
