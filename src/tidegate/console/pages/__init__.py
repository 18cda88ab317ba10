"""One module per page; each has ``routes(console) -> list[Route]``, and ``console.app`` lists them."""
