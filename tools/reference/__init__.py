"""The generated pages of ``docs/reference``: how each is made, and how it reads the source."""
