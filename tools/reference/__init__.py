"""The generated pages of ``docs/reference``: how each is made, and how the source is read for them."""
